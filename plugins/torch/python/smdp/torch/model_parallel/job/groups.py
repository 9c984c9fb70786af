"""The names that callers have for the axes of the mesh: whom a call concerns, what a rank counts."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from smdp._shown import shown
from smdp.torch.mesh.parallel_mesh import Axis

_Kind = TypeVar("_Kind", bound=Enum)


class CommGroup(Enum):
    """Whom a call concerns: all ranks, or this rank's group of a kind."""

    WORLD = "world"
    MP_GROUP = "mp"
    DP_GROUP = "dp"
    PP_GROUP = "pp"
    TP_GROUP = "tp"
    RDP_GROUP = "rdp"

    @property
    def axis(self) -> Axis:
        """The axis of the mesh."""
        return self.value


class RankType(Enum):
    """What a number of a rank counts: all ranks, or those of this rank's group of a kind."""

    WORLD_RANK = "world"
    MP_RANK = "mp"
    DP_RANK = "dp"
    PP_RANK = "pp"
    TP_RANK = "tp"
    RDP_RANK = "rdp"

    @property
    def axis(self) -> Axis:
        """The axis of the mesh."""
        return self.value


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
