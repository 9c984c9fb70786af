"""Coalesced calls: several prepared operations that start together and share one handle."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core
from ._handle import keep
from ._overlap import Region, check_apart, regions
from ._prepared_calls import PreparedCall


def start_all(
    group: _core.Group, name: str, calls: Sequence[PreparedCall], limit: float, *, is_async: bool
) -> Any:
    """Starts all operations; returns their handle if `is_async`, and the list of results otherwise.

    Raises:
        ValueError: One operation writes memory that another one uses. Nothing was sent.
        SmdpError: An operation failed.
    """
    check_apart(
        name, [used for number, call in enumerate(calls) for used in _memory(call, number, group.rank)]
    )
    handles: list[_core.Handle] = []
    buffers, results = [call.buffers for call in calls], [call.result for call in calls]
    try:
        for call in calls:
            if (handle := call.start(limit, True)) is not None:
                handles.append(handle)
    except BaseException:
        keep(handles, buffers, results, group)  # started operations still write to their arrays
        raise
    merged = keep(handles, buffers, results, group)
    return merged if is_async else merged.wait()


def one_per_array(out: Sequence[Any] | None, count: int) -> Sequence[Any]:
    """Returns one output per array; all of them are None if `out` is None.

    Raises:
        ValueError: The number of outputs differs from the number of arrays.
    """
    if out is None:
        return [None] * count
    if len(out) != count:
        raise ValueError(f"[smdp] out has {len(out)} entries; it needs one per array, {count}.")
    return out


def _memory(call: PreparedCall, number: int, rank: int) -> list[Region]:
    """Returns the memory that an operation uses; `number` is its position in the coalesced call."""
    itemsize = _core.dtype_size(call.dtype)
    return [
        region
        for blocks, writes in ((call.reads, False), (call.writes, True))
        for region in regions(
            number,
            [block.pointer for block in blocks],
            [block.elements * itemsize for block in blocks],
            rank,
            writes=writes,
        )
    ]
