"""The memory blocks that a collective reads or writes: one per rank, or one whole array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ._buffers import Buffer, view


class Block(NamedTuple):
    """A block that is sent to or received from one rank. ``array`` keeps the memory alive."""

    pointer: int
    elements: int
    shape: tuple[int, ...]
    array: npt.NDArray[Any]


def whole(data: Buffer) -> Block:
    """Returns a whole array as one block."""
    return Block(data.pointer, data.elements, data.shape, data.array)


def blocks_of(value: Any, what: str, dtype: int, size: int, *, writes: bool) -> list[Block]:
    """Returns one block per rank, from one evenly divided array or from a list of arrays.

    Args:
        value: The array or the list of arrays.
        what: Its name in messages.
        dtype: The element type that all arrays of the call must have.
        size: Number of ranks.
        writes: Whether the collective writes to the blocks.

    Raises:
        ValueError: There is not one block per rank, an array has another dtype, or view() rejects it.
    """
    if isinstance(value, list | tuple):
        check_one_per_rank(value, what, size)
        views = [view(one, writes=writes, what=f"{what}[{i}]") for i, one in enumerate(value)]
    else:
        views = [view(value, writes=writes, what=what)]
    for one in views:
        if one.dtype != dtype:
            raise ValueError(
                f"[smdp] {what} has dtype {one.array.dtype}; all arrays of a call must have the same dtype."
            )
    if isinstance(value, list | tuple):
        return [whole(one) for one in views]
    divided = views[0]
    shape = block_shape(divided, size)
    count = divided.elements // size
    step = count * divided.array.dtype.itemsize
    return [Block(divided.pointer + r * step, count, shape, divided.array) for r in range(size)]


def block_shape(data: Buffer, size: int) -> tuple[int, ...]:
    """Returns the shape of one rank's block of an evenly divided array.

    Raises:
        ValueError: The first dimension cannot be divided among the ranks.
    """
    if not data.shape or data.shape[0] % size != 0:
        raise ValueError(
            f"[smdp] the array has shape {list(data.shape)}; its first dimension must be divisible by the"
            f" {size} ranks. For blocks of unequal size, pass a list of arrays."
        )
    return (data.shape[0] // size, *data.shape[1:])


def compared_shapes(
    value: Any, blocks: Sequence[Block], whole_shape: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Returns the shapes that ranks compare: one per block for a list, otherwise the whole array's."""
    return [block.shape for block in blocks] if isinstance(value, list | tuple) else [whole_shape]


def gathered(data: Buffer, size: int) -> npt.NDArray[Any]:
    """Returns a new array with room for one array like ``data`` from every rank."""
    return np.empty((size, *data.shape), data.array.dtype)


def check_one_per_rank(arrays: Sequence[Any], what: str, size: int) -> None:
    """Checks that a list has one array per rank.

    Raises:
        ValueError: The list has more or fewer arrays.
    """
    if len(arrays) != size:
        raise ValueError(f"[smdp] {what} has {len(arrays)} arrays; it needs one per rank, {size}.")


def check_alike(source: Buffer, target: Buffer, what: str) -> None:
    """Checks that the output of a call has the shape and dtype of its input.

    Raises:
        ValueError: The shape or dtype differs.
    """
    if source.shape != target.shape or source.dtype != target.dtype:
        raise ValueError(
            f"[smdp] {what} is {target.array.dtype}{list(target.shape)}, but the input is"
            f" {source.array.dtype}{list(source.shape)}; they must have the same shape and dtype."
        )
