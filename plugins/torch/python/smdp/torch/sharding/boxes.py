"""Cuts a range of a tensor's memory into boxes, by which `torch.distributed.checkpoint` describes parts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Box(NamedTuple):
    """A part of a tensor that has a range of indices in each dimension.

    Attributes:
        offsets: The first index in each dimension.
        sizes: The number of indices in each dimension.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


def memory_order(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Returns the dimensions of a dense tensor, the one with the largest stride first."""
    dims = range(len(shape))
    return sorted(dims, key=lambda dim: (-strides[dim] if shape[dim] != 1 else -math.inf, dim))


def boxes_of(shape: Sequence[int], order: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    """Yields the boxes of a range that is not empty, at most two per dimension and one more.

    The elements of each box are contiguous in memory, and the boxes follow each other there.

    Args:
        shape: The shape of the tensor.
        order: See `memory_order()`.
        begin: The first element, in memory order.
        end: The element after the last one.
    """
    for box in _row_major([shape[dim] for dim in order], begin, end):
        place = {dim: number for number, dim in enumerate(order)}
        dims = range(len(shape))
        yield Box(
            tuple(box.offsets[place[dim]] for dim in dims), tuple(box.sizes[place[dim]] for dim in dims)
        )


def _row_major(shape: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    if not shape:
        yield Box((), ())
        return
    inner = shape[1:]
    size = math.prod(inner)
    first, skipped = divmod(begin, size)
    last, rest = divmod(end, size)
    if skipped:
        yield from _in_row(first, inner, skipped, rest if first == last else size)
        first += 1
    if first < last:
        yield Box((first, *[0] * len(inner)), (last - first, *inner))
    if rest and first <= last:
        yield from _in_row(last, inner, 0, rest)


def _in_row(row: int, inner: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    for offsets, sizes in _row_major(inner, begin, end):
        yield Box((row, *offsets), (1, *sizes))
