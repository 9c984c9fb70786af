"""Collectives whose arguments have been checked, ready to start alone or in a coalesced call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from . import _core
from ._blocks import Block, block_shape, blocks_of, check_one_per_rank, compared_shapes, gathered, whole
from ._buffers import Buffer, view


class PreparedCall(NamedTuple):
    """An operation that is ready to start: all checks that need no other rank have passed."""

    start: Callable[[float, bool], _core.Handle | None]
    dtype: int
    buffers: Any
    result: Any
    reads: Sequence[Block]
    writes: Sequence[Block]


def prepare_all_reduce(group: _core.Group, own: Buffer, array: Any, op: int) -> PreparedCall:
    """Returns an in-place all_reduce of an array that view() has checked."""

    def start(limit: float, is_async: bool) -> _core.Handle | None:
        place = own.pointer
        return group.all_reduce(place, place, own.shape, own.dtype, op, 1.0, limit, is_async)

    return PreparedCall(start, own.dtype, own, array, (), (whole(own),))


def prepare_all_gather(group: _core.Group, array: Any, out: Any) -> PreparedCall:
    """Returns an all_gather of ``array`` into ``out``, or into a new array if ``out`` is None.

    Raises:
        ValueError: An array is not valid for all_gather.
    """
    source = view(array, writes=False, what="the array")
    if out is None:
        out = gathered(source, group.size)
    targets = blocks_of(out, "out", source.dtype, group.size, writes=True)
    if targets[group.rank].elements != source.elements:
        raise ValueError(
            f"[smdp] out has {targets[group.rank].elements} elements for rank {group.rank}, but that rank's"
            f" array has {source.elements}; the numbers must be equal."
        )

    def start(limit: float, is_async: bool) -> _core.Handle | None:
        return group.all_gather(
            source.pointer,
            source.elements,
            [b.pointer for b in targets],
            [b.elements for b in targets],
            source.dtype,
            limit,
            is_async,
            compared_shapes(out, targets, source.shape),
        )

    return PreparedCall(start, source.dtype, (source, targets), out, (whole(source),), targets)


def prepare_reduce_scatter(group: _core.Group, array: Any, op: int, out: Any, factor: float) -> PreparedCall:
    """Returns a reduce_scatter of ``array`` into ``out``, or into a new array if ``out`` is None.

    Raises:
        ValueError: An array is not valid for reduce_scatter.
    """
    if isinstance(array, list | tuple):
        check_one_per_rank(array, "the array", group.size)
        first = view(array[group.rank], writes=False, what="the array")
        shape = first.shape
    else:
        first = view(array, writes=False, what="the array")
        shape = block_shape(first, group.size)
    if out is None:
        out = np.empty(shape, first.array.dtype)
    target = view(out, writes=True, what="out")
    blocks = blocks_of(array, "the array", first.dtype, group.size, writes=False)
    if target.elements != blocks[group.rank].elements or target.dtype != first.dtype:
        raise ValueError(
            f"[smdp] out has {target.elements} elements of {target.array.dtype}; it needs"
            f" {blocks[group.rank].elements} of {first.array.dtype}."
        )

    def start(limit: float, is_async: bool) -> _core.Handle | None:
        return group.reduce_scatter(
            [b.pointer for b in blocks],
            [b.elements for b in blocks],
            target.pointer,
            first.dtype,
            op,
            factor,
            limit,
            is_async,
            compared_shapes(array, blocks, first.shape),
        )

    return PreparedCall(start, first.dtype, (blocks, target), target.array, blocks, (whole(target),))


def prepare_all_to_all(group: _core.Group, array: Any, out: Any) -> PreparedCall:
    """Returns an all_to_all of ``array`` into ``out``, or into a new array if ``out`` is None.

    Raises:
        ValueError: An array is not valid for all_to_all.
    """
    is_list = isinstance(array, list | tuple)
    if is_list:
        check_one_per_rank(array, "the array", group.size)
    first = view(array[0] if is_list else array, writes=False, what="the array")
    if out is None:
        if is_list:
            raise ValueError("[smdp] all_to_all of a list requires out, a list of arrays for the result.")
        out = np.empty_like(first.array)
    sources = blocks_of(array, "the array", first.dtype, group.size, writes=False)
    targets = blocks_of(out, "out", first.dtype, group.size, writes=True)
    # The blocks of a list may differ between ranks. Shapes are compared only if all blocks here are alike.
    shapes = compared_shapes(array, sources, first.shape)
    if is_list and len({block.shape for block in (*sources, *targets)}) > 1:
        shapes = []

    def start(limit: float, is_async: bool) -> _core.Handle | None:
        return group.all_to_all(
            [b.pointer for b in sources],
            [b.elements for b in sources],
            [b.pointer for b in targets],
            [b.elements for b in targets],
            first.dtype,
            limit,
            is_async,
            shapes,
        )

    return PreparedCall(start, first.dtype, (sources, targets), out, sources, targets)
