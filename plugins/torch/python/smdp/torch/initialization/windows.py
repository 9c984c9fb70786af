"""Describes tensors as windows on storages, which may not have memory yet."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Window:
    """A strided tensor on a node."""

    node: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype

    def on(self, storage: torch.UntypedStorage) -> Tensor:
        """Returns the tensor on a storage with values."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)

    def blank(self, device: torch.device) -> Tensor:
        """Returns an uninitialized tensor with this layout."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class Node:
    """A storage: its size, the device it is for, and whether it existed before the tape."""

    nbytes: int
    device: torch.device
    is_adopted: bool


def covers(window: Window, node: Node) -> bool:
    """Returns whether a window covers all bytes of a node exactly once."""
    expected = 1
    for stride, size in sorted(zip(window.stride, window.size, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return window.offset == 0 and expected * window.dtype.itemsize == node.nbytes


def as_laid_out(output: Tensor, window: Window, node: Node) -> torch.UntypedStorage:
    """Returns the storage of an operation's output in the layout of its meta tensor, which may differ."""
    storage = output.untyped_storage()
    is_same = (tuple(output.stride()), output.storage_offset()) == (window.stride, window.offset)
    if is_same and storage.nbytes() == node.nbytes:
        return storage
    blank = torch.empty(node.nbytes, dtype=torch.uint8, device=output.device).untyped_storage()
    window.on(blank).copy_(output)
    return blank
