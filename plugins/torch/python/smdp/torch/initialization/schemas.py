"""Facts about what torch's operations read, write and return, from their names and schemas."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

# Random draws that depend only on the shape of the target, not on its values.
FILLS = {
    "uniform_",
    "normal_",
    "random_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "geometric_",
    "bernoulli_",
}
# All operations that overwrite their first argument without reading it.
OVERWRITES = FILLS | {"fill_", "zero_", "copy_"}
# Operations that read the shape of their first argument, but never its values.
SHAPE_ONLY = {
    "empty_like",
    "zeros_like",
    "ones_like",
    "full_like",
    "rand_like",
    "randn_like",
    "randint_like",
    "new_empty",
    "new_empty_strided",
    "new_zeros",
    "new_ones",
    "new_full",
}


def asks_for_meta(kwargs: dict[str, Any]) -> bool:
    """Returns whether the arguments of a call ask for a meta tensor."""
    device = kwargs.get("device")
    return device is not None and torch.device(device).type == "meta"


def takes_device(func: Any) -> bool:
    """Returns whether an operation has a `device` argument."""
    return any(argument.name == "device" for argument in func._schema.arguments)


def gives_tensors(func: Any) -> bool:
    """Returns whether an operation returns only tensors."""
    returns = func._schema.returns
    return bool(returns) and all("Tensor" in str(each.type) for each in returns)


def written_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Returns the tensors that a call changes."""
    written = []
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        written += [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return written
