"""Tensors as windows on storages that may have no memory yet."""

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
        """Give the tensor on a storage with values."""
        empty = torch.empty(0, dtype=self.dtype, device=storage.device)
        return empty.set_(storage, self.offset, self.size, self.stride)

    def blank(self, device: torch.device) -> Tensor:
        """Give a tensor of this layout whose values are of no interest."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device=device)


@dataclass(frozen=True, slots=True)
class Node:
    """A storage: its size, where it would lie, and whether it was there before the tape."""

    nbytes: int
    device: torch.device
    is_adopted: bool


def covers(window: Window, node: Node) -> bool:
    """Tell whether a window is all of a node's bytes, each once."""
    expected = 1
    for stride, size in sorted(zip(window.stride, window.size, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return window.offset == 0 and expected * window.dtype.itemsize == node.nbytes


def as_laid_out(output: Tensor, window: Window, node: Node) -> torch.UntypedStorage:
    """Give an operation's output the layout that its meta tensor has, which may differ."""
    storage = output.untyped_storage()
    is_same = (tuple(output.stride()), output.storage_offset()) == (window.stride, window.offset)
    if is_same and storage.nbytes() == node.nbytes:
        return storage
    blank = torch.empty(node.nbytes, dtype=torch.uint8, device=output.device).untyped_storage()
    window.on(blank).copy_(output)
    return blank
