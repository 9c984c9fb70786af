"""Enumerations for the axes of the mesh: groups of ranks, and kinds of rank numbers."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from smdp._shown import shown
from smdp.torch.mesh.parallel_mesh import Axis

_Kind = TypeVar("_Kind", bound=Enum)


class CommGroup(Enum):
    """The ranks that a call involves: all ranks, or this rank's group of a kind."""

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
    """The kind of a rank number: within all ranks, or within this rank's group of a kind."""

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
    """Checks that an argument is a CommGroup, and returns it.

    Raises:
        ValueError: It is not a CommGroup.
    """
    return _member(CommGroup, "group", group)


def rank_type(kind: object) -> RankType:
    """Checks that an argument is a RankType, and returns it.

    Raises:
        ValueError: It is not a RankType.
    """
    return _member(RankType, "rank_type", kind)


def _member(kinds: type[_Kind], name: str, given: object) -> _Kind:
    if isinstance(given, kinds):
        return given
    allowed = ", ".join(f"smp.{kind.name}" for kind in kinds)
    raise ValueError(f"[smdp] {name} = {shown(given)} is not valid; allowed: {allowed}")
