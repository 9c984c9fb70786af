"""The tensors in what a module returns: a backward through one of them is a step of the module."""

from __future__ import annotations

from enum import Enum
from typing import Any

import torch
from torch.nn.parallel.distributed import _find_tensors
from torch.utils._pytree import tree_leaves

# What is in an output without holding a tensor that has a gradient; a torch.Size is a tuple.
_PLAIN = (torch.Tensor, complex, float, int, str, bytes, tuple, Enum, torch.dtype, torch.device, torch.layout)


def tensors_in(output: Any) -> tuple[list[torch.Tensor], bool]:
    """Returns the tensors of an output, and whether every object of an unknown class in it has some.

    They are looked for as torch does, and in objects of other classes.
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
    """Those that an object or what it holds has as attributes: distributions, caches of keys and values."""
    held = tree_leaves(list(getattr(holder, "__dict__", {}).values()))
    tensors = [one for one in held if isinstance(one, torch.Tensor)]
    if depth > 1:
        others = (one for one in held if not isinstance(one, (torch.Tensor, torch.nn.Module)))
        tensors += [tensor for one in others for tensor in _tensors_of(one, depth - 1)]
    return tensors
