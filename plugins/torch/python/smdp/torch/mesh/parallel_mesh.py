"""The ranks along the pipeline, tensor and data axes, and their process groups."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypeVar

import torch.distributed as dist

from smdp._shown import counted
from smdp.placement import Kind, Placement
from smdp.torch.process_group.process_group import ProcessGroupSmdp, timeout_of_world

_Owner = TypeVar("_Owner")

Axis: TypeAlias = Kind | Literal["world"]
"""An axis of the mesh: "pp", "tp", "rdp", a combination of them ("dp", "mp"), or all ranks ("world")."""

# The ranks of a requested group, as an axis or as stages of each pipeline, and whether steps use the group.
_Asked: TypeAlias = "tuple[Axis | tuple[int, ...], bool]"


class ParallelMesh:
    """Owns the ranks and the process groups of all parallel axes.

    Ask the mesh for a group each time and do not keep the group. Changing the membership is then a single
    assignment on all ranks of the job: `mesh.placement = Placement(...)`.

    Each group is created once. Axes with the same ranks share a group, and the tags of a `Channel` separate
    their messages. Steps communicate over separate groups (`step_group`). A failed step closes only these,
    so the script can still save a checkpoint over its own groups (`group`).

    Args:
        pp: The number of ranks that hold different stages of one model.
        tp: The number of ranks that hold different slices of one stage.
        rdp: The number of ranks that hold the same slice of the same stage.
        strategy: The order of the axes over the ranks; see `smdp.placement`.
        rank: The rank of this process. Default: its rank in torch.distributed.

    Attributes:
        rank: The rank of this process in the world.

    Raises:
        ValueError: A size or the strategy is not valid.
    """

    def __init__(
        self, pp: int = 1, tp: int = 1, rdp: int = 1, strategy: str = "cluster", rank: int | None = None
    ) -> None:
        self._given_rank = rank
        self._set_placement(Placement(pp, tp, rdp, strategy))
        # The requested groups, in the order of the requests, which is the same on all ranks.
        self._asked: dict[_Asked, None] = {}
        # Groups by their ranks and whether steps use them; None if this rank is not a member.
        self._made: dict[tuple[tuple[int, ...], bool], ProcessGroupSmdp | None] = {}
        self._aborts: weakref.WeakKeyDictionary[Any, Callable[[Any, str], None]] = weakref.WeakKeyDictionary()

    @classmethod
    def of_world(cls, *, pp: int = 1, tp: int = 1, strategy: str = "cluster") -> ParallelMesh:
        """Returns a mesh with as many replicas as fill the world of torch.distributed.

        Raises:
            ValueError: The world size is not a multiple of `pp`, or torch.distributed is not initialized.
        """
        if not dist.is_initialized():
            raise ValueError(
                '[smdp] pipeline() needs torch.distributed. Call dist.init_process_group("smdp") first, and'
                f" start {counted(pp, 'process')}, for example with `smdp run -n {pp} script.py`."
            )
        world = dist.get_world_size()
        if world % pp != 0:
            raise ValueError(
                f"[smdp] a world of {counted(world, 'rank')} cannot be divided into pipelines of"
                f" {counted(pp, 'stage')}. Start a multiple of {counted(pp, 'rank')}, or use stages ="
                f" {_divisors(world)}."
            )
        found = Placement.of_world(world, pipeline=pp, tensor=tp, strategy=strategy)
        return cls(found.pipeline, found.tensor, found.data, strategy)

    def __deepcopy__(self, memo: object) -> ParallelMesh:
        """Returns the same mesh, because process groups cannot be copied."""
        return self

    # Ranks.

    @property
    def placement(self) -> Placement:
        """The mapping of the axes to the ranks.

        All ranks of the job assign a new placement together; torch.distributed may have been initialized
        again before. This closes the groups of the old placement and creates all groups that have been
        requested so far.

        Raises:
            ValueError: The new placement does not fill the world. The mesh is then left unchanged.
        """
        return self._placement

    @placement.setter
    def placement(self, placement: Placement) -> None:
        world = dist.get_world_size()
        if placement.size != world:
            raise ValueError(
                f"[smdp] the new placement has {counted(placement.size, 'rank')}, but the world has {world}."
                " Assign a placement that fills the world."
            )
        self._set_placement(placement)
        self._leave({False, True})
        for asked in list(self._asked):
            what, _ = asked
            if isinstance(what, tuple) and what[-1] >= placement.pipeline:
                del self._asked[asked]  # these stages no longer exist
            else:
                self._make(asked)

    @property
    def stage_rank(self) -> int:
        """This rank's position in its pipeline."""
        return self._place.pp

    @property
    def replica(self) -> int:
        """This rank's position among the ranks that hold the same slice of the same stage."""
        return self._place.rdp

    @property
    def replicas(self) -> int:
        """The number of ranks that hold the same slice of the same stage."""
        return self._placement.data

    def ranks(self, axis: Axis) -> tuple[int, ...]:
        """Returns the world ranks of this rank's group along an axis, in ascending order."""
        found = self._ranks.get(axis)
        if found is None:
            if axis == "world":
                found = tuple(range(self._placement.size))
            else:
                found = self._placement.group(axis, self.rank)
            self._ranks[axis] = found
        return found

    # Groups.

    def make(self, *axes: Axis) -> None:
        """Creates the groups of the axes unless they exist. All ranks of the job call it together."""
        for axis in axes:
            self._ask((axis, False))

    def make_for_steps(self, *axes: Axis) -> None:
        """Creates the groups over which steps communicate. All ranks of the job call it together."""
        for axis in axes:
            self._ask((axis, True))

    def group(self, axis: Axis) -> ProcessGroupSmdp:
        """Returns this rank's group along an axis. All ranks of the job make the first call together."""
        self.make(axis)
        return self._made[self.ranks(axis), False]  # type: ignore[return-value]

    def step_group(self, axis: Axis) -> ProcessGroupSmdp:
        """Returns this rank's group along an axis for the communication of steps. A failed step closes it.

        All ranks of the job make the first call together. On an axis with a single rank, this is the group of
        the script, because nothing is sent.
        """
        if len(self.ranks(axis)) == 1:
            return self.group(axis)
        self.make_for_steps(axis)
        return self._made[self.ranks(axis), True]  # type: ignore[return-value]

    def group_of_stages(self, stage_ranks: tuple[int, ...]) -> ProcessGroupSmdp | None:
        """Returns a group of some ranks of this rank's pipeline, for the communication of steps.

        All ranks of the job make the first call together.

        Args:
            stage_ranks: Positions in the pipeline, in ascending order.

        Returns:
            The group, or None if this rank is not a member.
        """
        self._ask((stage_ranks, True))
        pipeline = self.ranks("pp")
        return self._made[tuple(pipeline[place] for place in stage_ranks), True]

    def abort_also(self, owner: _Owner, abort: Callable[[_Owner, str], None]) -> None:
        """Makes `abort()` call a function with its owner and the reason, while the owner exists.

        For groups that belong to steps, but that others have made, such as those that average gradients.
        """
        self._aborts[owner] = abort

    def abort(self, reason: str) -> None:
        """Tells the other ranks that this rank cannot continue a step."""
        for owner, abort in list(self._aborts.items()):
            with contextlib.suppress(Exception):
                abort(owner, reason)
        for (_, is_of_steps), group in self._made.items():
            if is_of_steps and group is not None:
                with contextlib.suppress(Exception):
                    group.core.abort(reason)

    def close(self) -> None:
        """Leaves the groups of the script. The groups of steps stay, because late results still use them."""
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
            # torch.distributed may have been destroyed, or initialized again without this group.
            if group is not None and dist.is_initialized():
                with contextlib.suppress(ValueError):
                    dist.destroy_process_group(group)

    def _ask(self, asked: _Asked) -> None:
        if asked not in self._asked:
            self._asked[asked] = None
            self._make(asked)

    def _make(self, asked: _Asked) -> None:
        """Creates all groups of an axis or of some stages, in an order that is the same on all ranks."""
        what, is_of_steps = asked
        for ranks in self._all_ranks(what):
            if (ranks, is_of_steps) in self._made:
                continue
            is_member = self.rank in ranks
            if len(ranks) > 1:
                made = _new_group(ranks)
                self._made[ranks, is_of_steps] = made if is_member else None
            elif is_member and not is_of_steps:
                # Created now, while the store is available. The other ranks need not wait for this one.
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
