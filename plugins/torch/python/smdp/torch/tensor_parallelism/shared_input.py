"""The input that several column-parallel layers share, whose gradient is summed over the ranks once."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from smdp.torch.tensor_parallelism.functions import copy_to_ranks
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def shared_input(tensor: Tensor, axis: TensorAxis) -> Tensor:
    """Returns the input of a column-parallel layer; see copy_to_ranks().

    Layers that are called with the same tensor, such as query, key and value, share one copy, so that
    backward sums their gradients first and then over the ranks, in one collective.
    """
    # An attribute of the input: layers save the values of the copy, which do not keep the copy itself alive.
    owner: Any = tensor
    key = (axis.number, tensor._version)
    found: tuple[Any, Tensor] | None = getattr(owner, "_smdp_copy", None)
    if found is not None and found[0] == key:
        return found[1]
    copy = copy_to_ranks(tensor, axis)
    if copy is not tensor:
        owner._smdp_copy = (key, copy)
    return copy
