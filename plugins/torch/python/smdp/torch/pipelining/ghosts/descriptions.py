"""What a module gives, told to ranks that cannot predict it: structure, shapes and dtypes, no contents."""

from __future__ import annotations

import pickle
from typing import Any

import torch
from torch import Tensor

from smdp.torch.pipelining.ghosts.ghosts import Ghosts
from smdp.torch.pipelining.tensors.containers import map_leaves, map_tensors


class _Described:
    """A tensor without its contents. No dataclass: structures are searched through those."""

    def __init__(self, tensor: Tensor) -> None:
        self.shape = tuple(tensor.shape)
        self.stride = tuple(tensor.stride())
        self.dtype = tensor.dtype
        self.needs_grad = bool(tensor.requires_grad)


def described(result: Any) -> Any:
    """Give a structure with each tensor described."""
    return map_tensors(_Described, result)


def packed(description: Any) -> Tensor:
    """Give a description as bytes."""
    return torch.frombuffer(bytearray(pickle.dumps(description)), dtype=torch.uint8)


def unpacked(data: Tensor) -> Any:
    """Give the description that packed() made on another rank of this job."""
    return pickle.loads(data.numpy().tobytes())


def drawn(description: Any, ghosts: Ghosts) -> Any:
    """Give a structure with a placeholder for each tensor that is described."""

    def placeholder(leaf: Any) -> Any:
        if not isinstance(leaf, _Described):
            return leaf
        return ghosts.receive(leaf.shape, leaf.stride, leaf.dtype, leaf.needs_grad)

    return map_leaves(placeholder, description)
