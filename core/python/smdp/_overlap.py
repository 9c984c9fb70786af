"""Detects memory that is shared between operations of one coalesced call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Region(NamedTuple):
    """A piece of memory that an operation reads or writes."""

    begin: int
    end: int
    call: int
    writes: bool
    is_own: bool


def regions(
    call: int, pointers: Sequence[int], sizes: Sequence[int], rank: int, *, writes: bool
) -> list[Region]:
    """Returns the regions of an operation's blocks: one block per rank, or only this rank's block.

    Args:
        call: The operation's position in the coalesced call.
        pointers: Addresses of the blocks.
        sizes: Sizes of the blocks in bytes.
        rank: This process's rank.
        writes: Whether the operation writes the blocks; otherwise, it reads them.
    """
    own = rank if len(pointers) > 1 else 0
    return [
        Region(pointer, pointer + size, call, writes, block == own)
        for block, (pointer, size) in enumerate(zip(pointers, sizes, strict=True))
        if size
    ]


def check_apart(name: str, used: Iterable[Region]) -> None:
    """Checks that no operation of a coalesced call writes memory that another one reads or writes.

    Within one operation, the core's rules apply: this rank's block may be both input and output, and outputs
    may be the same block.

    Raises:
        ValueError: Two regions share memory, and at least one of them is written.
    """
    active: list[Region] = []
    for region in sorted(used):
        active = [other for other in active if other.end > region.begin]
        for other in active:
            if not (region.writes or other.writes) or _may_be_one(region, other):
                continue
            first, last = sorted((region.call, other.call))
            which = f"array {first}" if first == last else f"arrays {first} and {last}"
            shared = min(region.end, other.end) - region.begin
            raise ValueError(
                f"[smdp] {name}: the buffers of {which} share {shared} bytes of memory, so one could be"
                " overwritten before it is read. Use separate memory for each."
            )
        active.append(region)


def _may_be_one(one: Region, other: Region) -> bool:
    is_same = one[:3] == other[:3]  # begin, end and operation
    return is_same and ((one.is_own and other.is_own) or (one.writes and other.writes))
