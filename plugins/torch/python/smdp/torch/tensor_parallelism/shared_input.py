"""The input that several column-parallel layers share, whose gradient is summed over the ranks once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdp.torch.tensor_parallelism.functions import copy_to_ranks
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def shared_input(tensor: Tensor, axis: TensorAxis) -> Tensor:
    """Returns the input of a column-parallel layer; see copy_to_ranks().

    Layers that are called with the same tensor, such as query, key and value, share one copy, so that
    backward sums their gradients first and then over the ranks, in one collective. Leaves of the graph, such
    as parameters and the arguments of reentrant checkpoints, are copied for each layer.
    """
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor  # tensors of torch.inference_mode() have no version
    if torch.compiler.is_compiling():
        return copy_to_ranks(tensor, axis)  # a graph has neither weak references nor versions
    found = shared_copy(tensor, axis)
    if found is not None:
        return found
    copy = copy_to_ranks(tensor, axis)
    if copy is not tensor:
        share_copy(tensor, copy, axis)
    return copy


def shared_copy(tensor: Tensor, axis: TensorAxis) -> Tensor | None:
    """Returns the copy of an input that an earlier layer has made, or None."""
    found: tuple[Any, Tensor] | None = getattr(tensor, "_smdp_copy", None)
    return found[1] if found is not None and found[0] == (axis.number, tensor._version) else None


def share_copy(tensor: Tensor, copy: Tensor, axis: TensorAxis) -> None:
    """Keeps the copy of an input for later layers, unless the input is a leaf.

    The graph of a copy holds the leaf, so the leaf would never be freed, and its `data` may be replaced.
    """
    if tensor.is_leaf:
        return
    # An attribute of the input: layers save the values of the copy, which do not keep the copy itself alive.
    owner: Any = tensor
    owner._smdp_copy = ((axis.number, tensor._version), copy)
