"""Ranks and process groups of pipelines and their replicas."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import cast

import torch.distributed as dist

from smdp._shown import counted
from smdp.placement import Placement
from smdp.torch.process_group.process_group import ProcessGroupSmdp, timeout_of_world


class Layout:
    """Where this rank stands. All ranks of the job make it together.

    Args:
        stages: Ranks of one pipeline.
        strategy: How pipelines and replicas lie on the ranks; see `smdp.placement`.

    Raises:
        ValueError: The world cannot be divided into such pipelines.
    """

    def __init__(self, stages: int, strategy: str = "cluster") -> None:
        if not dist.is_initialized():
            raise ValueError(
                '[smdp] pipeline() needs torch.distributed: call dist.init_process_group("smdp") first, and'
                f" start {counted(stages, 'process')}, for instance with `smdp run -n {stages} script.py`"
            )
        world = dist.get_world_size()
        if world % stages != 0:
            raise ValueError(
                f"[smdp] a world of {counted(world, 'rank')} cannot be divided into pipelines of"
                f" {counted(stages, 'stage')}; allowed: a multiple of {counted(stages, 'rank')}, or stages ="
                f" {_divisors(world)}"
            )
        self.placement = Placement.of_world(world, pipeline=stages, strategy=strategy)
        self.rank = dist.get_rank()
        place = self.placement.coordinates(self.rank)
        self.stage_rank = place.pp
        self.replica = place.rdp
        self.replicas = self.placement.data
        self._groups: list[ProcessGroupSmdp] = []
        # Tell others, in groups of their own, that this rank cannot go on.
        self.also_abort: list[Callable[[str], None]] = []
        self.values = self._new_group("pp")
        self.reads = self._new_group("pp")
        self.copies = self._new_group("rdp") if self.replicas > 1 else None

    def group_of_stage_ranks(self, stage_ranks: list[int]) -> ProcessGroupSmdp | None:
        """Make a group of some ranks of each pipeline; all ranks of the job call it, members get theirs."""
        mine: ProcessGroupSmdp | None = None
        for members in self.placement.groups("pp"):
            ranks = [members[rank] for rank in stage_ranks]
            group = dist.new_group(ranks, backend="smdp", timeout=timeout_of_world())
            if self.rank in ranks:
                mine = cast("ProcessGroupSmdp", group)
                self._groups.append(mine)
        return mine

    def abort(self, reason: str) -> None:
        """Let the others know that this rank cannot go on."""
        for abort in [*(group.core.abort for group in self._groups), *self.also_abort]:
            with contextlib.suppress(Exception):
                abort(reason)

    def _new_group(self, kind: str) -> ProcessGroupSmdp:
        mine = None
        for ranks in self.placement.groups(kind):  # type: ignore[arg-type]
            group = dist.new_group(list(ranks), backend="smdp", timeout=timeout_of_world())
            if self.rank in ranks:
                mine = group
        self._groups.append(cast("ProcessGroupSmdp", mine))
        return self._groups[-1]


def _divisors(world: int) -> str:
    return ", ".join(str(number) for number in range(1, world + 1) if world % number == 0)
