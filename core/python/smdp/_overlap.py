"""Memory that calls which run at the same time would fight for."""

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
    """Describe the blocks of one operation: one per rank, or only that of this one.

    Args:
        call: Its place in the list of operations.
        pointers: Addresses of the blocks.
        sizes: Their bytes.
        rank: This process.
        writes: The operation writes them; else it reads them.
    """
    own = rank if len(pointers) > 1 else 0
    return [
        Region(pointer, pointer + size, call, writes, block == own)
        for block, (pointer, size) in enumerate(zip(pointers, sizes, strict=True))
        if size
    ]


def check_apart(name: str, used: Iterable[Region]) -> None:
    """Refuse operations of one coalesced call that write what another of them reads or writes.

    Within one operation the same is allowed as by the core: this rank's block may be input and output, and
    outputs may be one.

    Raises:
        ValueError: Two regions share memory, and one is written.
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
                f"[smdp] {name}: buffers for {which} share {shared} bytes of memory, so that one is"
                " overwritten before it is read. Give each memory of its own."
            )
        active.append(region)


def _may_be_one(one: Region, other: Region) -> bool:
    is_same = one[:3] == other[:3]  # place and operation
    return is_same and ((one.is_own and other.is_own) or (one.writes and other.writes))
