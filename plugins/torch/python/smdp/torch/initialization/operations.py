"""Recorded operations, and the state of torch in which they are repeated."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from smdp.torch.initialization.windows import Window


@dataclass(slots=True)
class Operation:
    """A call on the tape, with a Window in place of each tensor."""

    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    device: torch.device
    default_dtype: torch.dtype
    reads: frozenset[int] = frozenset()
    writes: frozenset[int] = frozenset()
    overwrites: frozenset[int] = frozenset()  # nodes that are overwritten completely
    outputs: Sequence[Window | None] = ()  # None for a value that is not a new tensor
    state: Tensor | None = None  # the generator's state before a random draw


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Sets the default dtype within the context."""
    before = torch.get_default_dtype()
    if before is dtype:
        yield
        return
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Disables modes, autograd and autocast, as when operations were recorded."""
    with _disable_current_modes(), torch._C.DisableTorchFunction(), torch.no_grad():
        with torch._C._DisableAutocast():
            yield
