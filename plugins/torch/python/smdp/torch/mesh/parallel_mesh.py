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

# What a group has been asked for: an axis, or some stages of each pipeline; and whether steps use it.
_Asked: TypeAlias = "tuple[Axis | tuple[int, ...], bool]"


class ParallelMesh:
    """The one owner of ranks and process groups.

    Whoever needs a group asks for it each time and does not keep it. So a new membership is one assignment:
    `mesh.placement = Placement(...)`, on all ranks of the job.

    Each group is made once. Axes with the same ranks share a group; the tags of a `Channel` keep its messages
    apart. What steps send goes over groups of their own (`step_group`): a step that fails closes those, and
    the groups of the script (`group`) go on, so that it can still save a checkpoint.

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
        self._given_rank = rank
        self._set_placement(Placement(pp, tp, rdp, strategy))
        # In the order in which all ranks have asked.
        self._asked: dict[_Asked, None] = {}
        # By ranks, and whether steps use it. None: without this rank.
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

        All ranks of the job assign a new one together, also after torch.distributed has begun anew. The
        groups of the old one close, and those of the new one are made for all that has been asked for.

        Raises:
            ValueError: It does not fill the world. Nothing has changed then.
        """
        return self._placement

    @placement.setter
    def placement(self, placement: Placement) -> None:
        world = dist.get_world_size()
        if placement.size != world:
            raise ValueError(
                f"[smdp] the new placement has {counted(placement.size, 'rank')}, and the world has {world};"
                " allowed: one that fills the world"
            )
        self._set_placement(placement)
        self._leave({False, True})
        for asked in list(self._asked):
            what, _ = asked
            if isinstance(what, tuple) and what[-1] >= placement.pipeline:
                del self._asked[asked]  # stages that there are no longer
            else:
                self._make(asked)

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
            self._ask((axis, False))

    def make_for_steps(self, *axes: Axis) -> None:
        """Makes the groups over which steps send, likewise."""
        for axis in axes:
            self._ask((axis, True))

    def group(self, axis: Axis) -> ProcessGroupSmdp:
        """Returns this rank's group along an axis; all ranks of the job ask together for the first time."""
        self.make(axis)
        return self._made[self.ranks(axis), False]  # type: ignore[return-value]

    def step_group(self, axis: Axis) -> ProcessGroupSmdp:
        """Returns the group along an axis over which steps send. A step that fails closes it.

        All ranks of the job ask together for the first time. A rank that is alone on the axis sends nothing,
        and gets the group of the script.
        """
        if len(self.ranks(axis)) == 1:
            return self.group(axis)
        self.make_for_steps(axis)
        return self._made[self.ranks(axis), True]  # type: ignore[return-value]

    def group_of_stages(self, stage_ranks: tuple[int, ...]) -> ProcessGroupSmdp | None:
        """Returns a step's group of some ranks of this rank's pipeline; None if this rank is not one of them.

        All ranks of the job ask together for the first time.

        Args:
            stage_ranks: Places in the pipeline, ascending.
        """
        self._ask((stage_ranks, True))
        pipeline = self.ranks("pp")
        return self._made[tuple(pipeline[place] for place in stage_ranks), True]

    def abort(self, reason: str) -> None:
        """Lets the others know that this rank cannot go on with a step."""
        for (_, is_of_steps), group in self._made.items():
            if is_of_steps and group is not None:
                with contextlib.suppress(Exception):
                    group.core.abort(reason)

    def close(self) -> None:
        """Leaves the groups of the script. Those of steps stay: late results still travel over them."""
        self._leave({False})

    def _set_placement(self, placement: Placement) -> None:
        rank = dist.get_rank() if self._given_rank is None else self._given_rank
        self._place = placement.coordinates(rank)
        self.rank = rank
        self._placement = placement
        self._ranks: dict[Axis, tuple[int, ...]] = {}

    def _leave(self, uses: set[bool]) -> None:
        left = {key: group for key, group in self._made.items() if key[1] in uses}
        self._made = {key: group for key, group in self._made.items() if key not in left}
        for group in left.values():
            # torch.distributed may be gone, or have begun anew without this group.
            if group is not None and dist.is_initialized():
                with contextlib.suppress(ValueError):
                    dist.destroy_process_group(group)

    def _ask(self, asked: _Asked) -> None:
        if asked not in self._asked:
            self._asked[asked] = None
            self._make(asked)

    def _make(self, asked: _Asked) -> None:
        """Makes all groups of an axis or of some stages, in the order that new_group needs on all ranks."""
        what, is_of_steps = asked
        for ranks in self._all_ranks(what):
            if (ranks, is_of_steps) in self._made:
                continue
            is_member = self.rank in ranks
            if len(ranks) > 1:
                made = _new_group(ranks)
                self._made[ranks, is_of_steps] = made if is_member else None
            elif is_member and not is_of_steps:
                # Now, while there is a store. The others need not wait for a rank that is alone.
                self._made[ranks, False] = _new_group(ranks, use_local_synchronization=True)

    def _all_ranks(self, what: Axis | tuple[int, ...]) -> list[tuple[int, ...]]:
        if what == "world":
            return [self.ranks("world")]
        if isinstance(what, tuple):
            return [tuple(members[place] for place in what) for members in self._placement.groups("pp")]
        return self._placement.groups(what)


def _new_group(ranks: tuple[int, ...], *, use_local_synchronization: bool = False) -> Any:
    return dist.new_group(
        list(ranks),
        backend="smdp",
        timeout=timeout_of_world(),
        use_local_synchronization=use_local_synchronization,
    )


def _divisors(world: int) -> str:
    return ", ".join(str(number) for number in range(1, world + 1) if world % number == 0)
