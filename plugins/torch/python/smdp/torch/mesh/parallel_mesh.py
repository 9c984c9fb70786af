"""Who is where along the pipeline, tensor and data axes, and the process groups that follow from it."""

from __future__ import annotations

import contextlib
from typing import Any, Literal, TypeAlias

import torch.distributed as dist

from smdp._shown import counted
from smdp.placement import Kind, Placement
from smdp.torch.process_group.process_group import ProcessGroupSmdp, timeout_of_world

Axis: TypeAlias = Kind | Literal["world"]
"""An axis of the mesh: "pp", "tp", "rdp", what is composed of them ("dp", "mp"), or all ranks."""

# Axes along which ranks wait for each other within a step.
_AXES_OF_STEPS: tuple[Axis, ...] = ("pp", "tp", "rdp")


class ParallelMesh:
    """The one owner of ranks and process groups.

    Whoever needs a group asks for it each time and does not keep it. So a new membership is one assignment:
    `mesh.placement = Placement(...)`, on all ranks of the job.

    Each group is made once. Axes with the same ranks share a group; the tags of a `Channel` keep its messages
    apart. The world has a group of its own beside a pipeline that spans all ranks: a step that fails closes
    the groups of the pipeline, and the messages of the job go on.

    Args:
        pp: Ranks that hold different stages of one model.
        tp: Ranks that hold different slices of one stage.
        rdp: Ranks that hold the same slice of the same stage.
        strategy: How the axes lie on the ranks; see `smdp.placement`.
        rank: This rank. Default: its rank in torch.distributed.

    Attributes:
        rank: This rank in the world.

    Raises:
        ValueError: A size or the strategy is not valid.
    """

    def __init__(
        self, pp: int = 1, tp: int = 1, rdp: int = 1, strategy: str = "cluster", rank: int | None = None
    ) -> None:
        self.rank = dist.get_rank() if rank is None else rank
        self._stand(Placement(pp, tp, rdp, strategy))
        # What has been asked for, in the order in which all ranks have asked: axes, or some stages' ranks.
        self._asked: dict[Axis | tuple[int, ...], None] = {}
        # By ranks; the flag tells the world from a pipeline that spans it. None: without this rank.
        self._made: dict[tuple[tuple[int, ...], bool], ProcessGroupSmdp | None] = {}

    @classmethod
    def of_world(cls, *, pp: int = 1, tp: int = 1, strategy: str = "cluster") -> ParallelMesh:
        """Returns the mesh whose replicas fill the world of torch.distributed.

        Raises:
            ValueError: The world cannot be divided into such pipelines, or there is no world yet.
        """
        if not dist.is_initialized():
            raise ValueError(
                '[smdp] pipeline() needs torch.distributed: call dist.init_process_group("smdp") first, and'
                f" start {counted(pp, 'process')}, for instance with `smdp run -n {pp} script.py`"
            )
        world = dist.get_world_size()
        if world % pp != 0:
            raise ValueError(
                f"[smdp] a world of {counted(world, 'rank')} cannot be divided into pipelines of"
                f" {counted(pp, 'stage')}; allowed: a multiple of {counted(pp, 'rank')}, or stages ="
                f" {_divisors(world)}"
            )
        found = Placement.of_world(world, pipeline=pp, tensor=tp, strategy=strategy)
        return cls(found.pipeline, found.tensor, found.data, strategy)

    # Who is where.

    @property
    def placement(self) -> Placement:
        """Where the axes lie on the ranks.

        All ranks of the job assign a new one together. The groups of the old one close, and those of the new
        one are made for all that has been asked for.
        """
        return self._placement

    @placement.setter
    def placement(self, placement: Placement) -> None:
        self.close()
        self._stand(placement)
        for what in self._asked:
            self._make(what)

    @property
    def stage_rank(self) -> int:
        """This rank's place in its pipeline."""
        return self._place.pp

    @property
    def replica(self) -> int:
        """This rank's place among those that hold the same slice of the same stage."""
        return self._place.rdp

    @property
    def replicas(self) -> int:
        """Ranks that hold the same slice of the same stage."""
        return self._placement.data

    def ranks(self, axis: Axis) -> tuple[int, ...]:
        """Returns the world's ranks, ascending, of this rank's group along an axis."""
        found = self._ranks.get(axis)
        if found is None:
            if axis == "world":
                found = tuple(range(self._placement.size))
            else:
                found = self._placement.group(axis, self.rank)
            self._ranks[axis] = found
        return found

    # Their groups.

    def make(self, *axes: Axis) -> None:
        """Makes the groups of axes, unless they are there; all ranks of the job call it together."""
        for axis in axes:
            if axis not in self._asked:
                self._asked[axis] = None
                self._make(axis)

    def group(self, axis: Axis) -> ProcessGroupSmdp:
        """Returns this rank's group along an axis; all ranks of the job ask together for the first time.

        A rank that is alone on the axis may ask at any time.
        """
        ranks = self.ranks(axis)
        if len(ranks) > 1:
            self.make(axis)
        elif (ranks, False) not in self._made:
            # The others need not wait for a rank that is alone.
            self._made[ranks, False] = _new_group(ranks, use_local_synchronization=True)
        return self._made[self._key(axis, ranks)]  # type: ignore[return-value]

    def group_of_stages(self, stage_ranks: tuple[int, ...]) -> ProcessGroupSmdp | None:
        """Returns the group of some ranks of this rank's pipeline; None where this rank is not one of them.

        All ranks of the job ask together for the first time.

        Args:
            stage_ranks: Places in the pipeline, ascending.
        """
        if stage_ranks not in self._asked:
            self._asked[stage_ranks] = None
            self._make(stage_ranks)
        pipeline = self.ranks("pp")
        return self._made[tuple(pipeline[place] for place in stage_ranks), False]

    def abort(self, reason: str) -> None:
        """Lets the others know that this rank cannot go on with a step."""
        groups = {
            id(group): group
            for what in self._asked
            if what in _AXES_OF_STEPS or isinstance(what, tuple)
            for ranks in self._all_ranks(what)
            if (group := self._made.get((ranks, False))) is not None
        }
        for group in groups.values():
            with contextlib.suppress(Exception):
                group.core.abort(reason)

    def close(self) -> None:
        """Leaves all groups; torch.distributed may be gone already."""
        if dist.is_initialized():
            for group in self._made.values():
                if group is not None:
                    dist.destroy_process_group(group)
        self._made.clear()

    def _stand(self, placement: Placement) -> None:
        self._placement = placement
        self._place = placement.coordinates(self.rank)
        self._ranks: dict[Axis, tuple[int, ...]] = {}

    def _make(self, what: Axis | tuple[int, ...]) -> None:
        """Makes all groups of an axis or of some stages, in the order that new_group needs on all ranks."""
        for ranks in self._all_ranks(what):
            key = self._key(what, ranks)
            if len(ranks) > 1 and key not in self._made:
                made = _new_group(ranks)
                self._made[key] = made if self.rank in ranks else None

    def _all_ranks(self, what: Axis | tuple[int, ...]) -> list[tuple[int, ...]]:
        if what == "world":
            return [self.ranks("world")]
        if isinstance(what, tuple):
            return [tuple(members[place] for place in what) for members in self._placement.groups("pp")]
        return self._placement.groups(what)

    def _key(self, what: Axis | tuple[int, ...], ranks: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
        return ranks, what == "world" and self._placement.pipeline > 1


def _new_group(ranks: tuple[int, ...], *, use_local_synchronization: bool = False) -> Any:
    return dist.new_group(
        list(ranks),
        backend="smdp",
        timeout=timeout_of_world(),
        use_local_synchronization=use_local_synchronization,
    )


def _divisors(world: int) -> str:
    return ", ".join(str(number) for number in range(1, world + 1) if world % number == 0)
