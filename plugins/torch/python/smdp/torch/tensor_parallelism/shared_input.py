"""The input that several column-parallel layers share, whose gradient is summed over the ranks once."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import Tensor

from smdp.torch.tensor_parallelism.functions import copy_to_ranks
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class _Last(threading.local):
    """The newest input of this thread and its copy. Weak references, so that neither outlives the layers."""

    source: weakref.ref[Tensor] | None = None
    copy: weakref.ref[Tensor] | None = None
    key: Any = None


_last = _Last()


def shared_input(tensor: Tensor, axis: TensorAxis) -> Tensor:
    """Returns the input of a column-parallel layer; see copy_to_ranks().

    Layers that are called one after another with the same tensor, such as query, key and value, share one
    copy, so that backward sums their gradients first and then over the ranks, in one collective.
    """
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor  # tensors of torch.inference_mode() have no version
    key = (axis.number, tensor._version)
    if _last.key == key and _last.source is not None and _last.source() is tensor:
        copy = _last.copy() if _last.copy is not None else None
        if copy is not None:
            return copy
    copy = copy_to_ranks(tensor, axis)
    if copy is not tensor:
        _last.source, _last.copy, _last.key = weakref.ref(tensor), weakref.ref(copy), key
    return copy
