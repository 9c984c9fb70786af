"""The groups of a job: lists of ranks, torch's groups, and the names that callers have for them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch.distributed as dist

from smdp._shown import shown
from smdp.placement import Kind, Placement

if TYPE_CHECKING:
    from smdp.torch.process_group.process_group import ProcessGroupSmdp

_Kind = TypeVar("_Kind", bound=Enum)

KINDS: tuple[Kind, ...] = ("mp", "dp", "pp", "tp", "rdp")


class CommGroup(Enum):
    """Whom a call concerns: all ranks, or this rank's group of a kind."""

    WORLD = "world"
    MP_GROUP = "mp"
    DP_GROUP = "dp"
    PP_GROUP = "pp"
    TP_GROUP = "tp"
    RDP_GROUP = "rdp"


class RankType(Enum):
    """What a number of a rank counts: all ranks, or those of this rank's group of a kind."""

    WORLD_RANK = "world"
    MP_RANK = "mp"
    DP_RANK = "dp"
    PP_RANK = "pp"
    TP_RANK = "tp"
    RDP_RANK = "rdp"


class Groups:
    """The groups that a rank is in.

    Args:
        placement: Of the job.
        rank: This one.
    """

    def __init__(self, placement: Placement, rank: int) -> None:
        self.placement = placement
        self.rank = rank
        self._made: dict[tuple[int, ...], ProcessGroupSmdp] = {}

    @property
    def world(self) -> ProcessGroupSmdp:
        """All ranks, in a group of its own: what scripts do with torch's default group does not come between.

        The first use makes it, on all ranks together.
        """
        return cast("ProcessGroupSmdp", self._new(tuple(range(self.placement.size))))

    def make(self) -> None:
        """Make torch's groups of every kind, on all ranks together; kinds with the same ranks share one.

        The order is the same on all ranks, which each call of new_group needs.
        """
        for kind in KINDS:
            for ranks in self.placement.groups(kind):
                if len(ranks) > 1:
                    self._new(ranks)
        self._new((self.rank,))

    def ranks(self, group: CommGroup | RankType) -> tuple[int, ...]:
        """Give the world's ranks, ascending, of this rank's group."""
        if group.value == "world":
            return tuple(range(self.placement.size))
        return self.placement.group(group.value, self.rank)

    def process_group(self, group: CommGroup) -> ProcessGroupSmdp:
        """Give torch's group of this rank."""
        return self._made[self.ranks(group)]

    def close(self) -> None:
        """Leave them all; torch.distributed may be gone already."""
        if dist.is_initialized():
            for group in self._made.values():
                dist.destroy_process_group(group)
        self._made.clear()

    def _new(self, ranks: tuple[int, ...]) -> ProcessGroupSmdp | None:
        if ranks not in self._made:
            from smdp.torch.process_group.process_group import timeout_of_world

            # A group of one rank is that rank's own affair: the others make theirs meanwhile.
            made: Any = dist.new_group(
                list(ranks),
                backend="smdp",
                timeout=timeout_of_world(),
                use_local_synchronization=len(ranks) == 1,
            )
            if self.rank not in ranks:
                return None
            self._made[ranks] = made
        return self._made[ranks]


def comm_group(group: object) -> CommGroup:
    """Check that a caller names a group.

    Raises:
        ValueError: It is none.
    """
    return _member(CommGroup, "group", group)


def rank_type(kind: object) -> RankType:
    """Check that a caller names a kind of rank.

    Raises:
        ValueError: It is none.
    """
    return _member(RankType, "rank_type", kind)


def _member(kinds: type[_Kind], name: str, given: object) -> _Kind:
    if isinstance(given, kinds):
        return given
    allowed = ", ".join(f"smp.{kind.name}" for kind in kinds)
    raise ValueError(f"[smdp] {name} = {shown(given)} is not valid; allowed: {allowed}")
