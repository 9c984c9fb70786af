"""Finds the tensors in the output of a module. A backward through one of them is a step of the module."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch.nn.parallel.distributed import _find_tensors
from torch.utils._pytree import tree_leaves

# Leaves of an output that hold no tensor with a gradient. tuple is listed because of torch.Size.
_PLAIN = (torch.Tensor, complex, float, int, str, bytes, tuple, Enum, torch.dtype, torch.device, torch.layout)


def tensors_in(output: Any) -> tuple[list[torch.Tensor], bool]:
    """Returns the tensors of an output, and whether the search was complete.

    The search covers the containers that torch's DDP searches, and the attributes of other objects. It is
    incomplete if such an object has no tensors that it finds.
    """
    found = {id(tensor): tensor for tensor in _find_tensors(output)}
    is_all = True
    for leaf in tree_leaves(output):
        if leaf is None or isinstance(leaf, _PLAIN):
            continue
        held = _tensors_of(leaf)
        found.update({id(tensor): tensor for tensor in held})
        is_all = is_all and bool(held)
    return list(found.values()), is_all


def _tensors_of(holder: Any, depth: int = 3) -> list[torch.Tensor]:
    """Returns the tensors in an object's attributes and theirs, as in distributions or key-value caches."""
    held = tree_leaves(list(getattr(holder, "__dict__", {}).values()))
    tensors = [one for one in held if isinstance(one, torch.Tensor)]
    if depth > 1:
        others = (one for one in held if not isinstance(one, (torch.Tensor, torch.nn.Module)))
        tensors += [tensor for one in others for tensor in _tensors_of(one, depth - 1)]
    return tensors
