"""Descriptions of a module's result (structure, shapes and dtypes) for ranks that cannot predict it."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import Tensor

from smdp.torch.pipelining.ghosts.ghosts import Ghosts
from smdp.torch.pipelining.tensors.containers import map_leaves, map_tensors


class _Described:
    """A tensor without its contents. Not a dataclass, because map_tensors() searches the fields of those."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.stride = tuple(tensor.stride())
        self.dtype = tensor.dtype
        self.needs_grad = bool(tensor.requires_grad)


def described(result: Any) -> Any:
    """Returns a structure in which each tensor is replaced by its description."""
    return map_tensors(_Described, result)


def packed(description: Any) -> Tensor:
    """Returns a description as bytes."""
    return torch.frombuffer(bytearray(pickle.dumps(description)), dtype=torch.uint8)


def unpacked(data: Tensor) -> Any:
    """Returns the description from the bytes of packed() on another rank of this job."""
    return pickle.loads(data.numpy().tobytes())


def drawn(description: Any, ghosts: Ghosts) -> Any:
    """Returns a structure in which each description is replaced by a placeholder."""

    def placeholder(leaf: Any) -> Any:
        if not isinstance(leaf, _Described):
            return leaf
        return ghosts.receive(leaf.shape, leaf.stride, leaf.dtype, leaf.needs_grad)

    return map_leaves(placeholder, description)
