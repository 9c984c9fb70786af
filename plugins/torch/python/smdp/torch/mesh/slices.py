"""The part of a whole tensor that one rank holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Slices:
    """Ranges of one dimension of a whole tensor, which a rank holds one after another.

    Attributes:
        dim: The dimension, not negative.
        ranges: The first index of each range, and the index behind its last one.
        shape: The shape of the whole tensor.
    """

    dim: int
    ranges: tuple[tuple[int, int], ...]
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        """The number of indices in all ranges."""
        return sum(end - begin for begin, end in self.ranges)

    def take(self, whole: Tensor) -> Tensor:
        """Returns a contiguous copy of this rank's part of a whole tensor."""
        parts = [whole.narrow(self.dim, begin, end - begin) for begin, end in self.ranges]
        return torch.cat(parts, self.dim).contiguous()

    def put(self, part: Tensor, whole: Tensor) -> None:
        """Copies a part into its place in a whole tensor."""
        offset = 0
        for begin, end in self.ranges:
            whole.narrow(self.dim, begin, end - begin).copy_(part.narrow(self.dim, offset, end - begin))
            offset += end - begin


def even(length: int, rank: int, size: int) -> tuple[int, int]:
    """Returns the range of a rank if a length is divided into equal ranges; the last ones may be shorter."""
    each = -(-length // size)
    return min(rank * each, length), min((rank + 1) * each, length)


def blocks(lengths: Iterable[int], rank: int, size: int) -> tuple[tuple[int, int], ...]:
    """Returns the ranges of a rank if each of several blocks, which lie one after another, is divided."""
    found = []
    offset = 0
    for length in lengths:
        begin, end = even(length, rank, size)
        found.append((offset + begin, offset + end))
        offset += length
    return tuple(found)
