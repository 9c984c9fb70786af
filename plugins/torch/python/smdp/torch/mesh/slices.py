"""The part of a whole tensor that one rank holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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

    def within(self, begin: int, count: int) -> Iterator[tuple[int, int, int]]:
        """Yields where ranges overlap with `count` indices of a rank's part from `begin` on.

        Each result has the first index in the part, the index behind the last one, and the range's number.
        """
        offset = 0
        for number, (first, last) in enumerate(self.ranges):
            low, high = max(begin, offset), min(begin + count, offset + last - first)
            if low < high:
                yield low, high, number
            offset += last - first

    def place_of(self, index: int, number: int) -> int:
        """Returns the place in the whole tensor of an index in the part, which is in the range `number`."""
        before = sum(end - begin for begin, end in self.ranges[:number])
        return self.ranges[number][0] + index - before


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
