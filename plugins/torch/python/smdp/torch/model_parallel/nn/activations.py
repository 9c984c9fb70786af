"""The activations of distributed transformers."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

_TANH = functools.partial(F.gelu, approximate="tanh")
_KNOWN: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": _TANH,
    "gelu_fast": _TANH,
    "gelu_pytorch_tanh": _TANH,
    "relu": F.relu,
    "silu": F.silu,
    "swish": F.silu,
    "tanh": torch.tanh,
}


def activation_of(name: str) -> Callable[[Tensor], Tensor]:
    """Returns an activation by its name in SMP or in transformers.

    Raises:
        ValueError: There is none of this name.
    """
    if name not in _KNOWN:
        raise ValueError(f"[smdp] activation = {name!r} is not known; use one of: {', '.join(_KNOWN)}")
    return _KNOWN[name]
