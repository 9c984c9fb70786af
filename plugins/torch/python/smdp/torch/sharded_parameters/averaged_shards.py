"""Averages gradients over the ranks with shards during backward, and over replicas at its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.sharded_parameters.fsdp_groups import (
    Group,
    communicate_with,
    gradients,
    needs_reduced_at_once,
)
from smdp.torch.sharded_parameters.told_ranks import ToldAllGather, ToldRanks

_IN_FLIGHT = 2  # units whose whole gradients are kept while they are sent


class AveragedShards:
    """Sends gradients while backward continues.

    Each backward averages gradients over the ranks with shards. Replicas of shards, and ranks that keep a
    parameter whole, average what has accumulated in the last backward before a step.

    Args:
        groups: The parameters that are reduced together, with the ranks that average them afterwards.
        passes: The number of backwards before a step, where the script does not use `no_sync()`.
        ranks: The ranks that are told of errors.

    Attributes:
        at_end: Called after each backward.
    """

    def __init__(
        self, groups: Sequence[tuple[Group, ProcessGroupSmdp]], passes: int, ranks: ToldRanks
    ) -> None:
        self.at_end: Callable[[], None] | None = None
        self._ranks = ranks
        self._passes = passes
        self._count = 0  # backwards since the last step
        self._is_open = False
        self._is_paused = False
        self._task = -1  # the backward whose end is awaited
        self._reduced: list[tuple[Group, ProcessGroupSmdp]] = []  # in this backward
        self._local: dict[int, tuple[Group, ProcessGroupSmdp]] = {}  # differ between replicas
        self._under_way: list[tuple[dist.Work, Tensor]] = []
        for group, replicas in groups:
            communicate_with(
                group, ToldAllGather(ranks), _ReduceScatter(self, group), _Reduced(self, group, replicas)
            )

    @property
    def is_between(self) -> bool:
        """Whether the last backward was not the last one before a step."""
        return self._is_open

    @property
    def _is_last(self) -> bool:
        return not self._is_paused and self._count + 1 >= self._passes

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Makes no backward in the context the last one before a step."""
        before, self._is_paused = self._is_paused, True
        try:
            yield
        finally:
            self._is_paused = before

    def forget(self) -> None:
        """Starts again with gradients that have been cleared."""
        self._count, self._is_open = 0, False
        self._local.clear()
        self._reduced.clear()

    def reduce_scatter(self, group: Group, output: Tensor, given: Tensor, ranks: Any, op: Any) -> dist.Work:
        """Starts to sum gradients over the ranks with shards."""
        self._await_end()
        with self._ranks.told():
            self._average_replicas()
            self._wait(_IN_FLIGHT - 1)
            work = dist.reduce_scatter_single(output, given, op=op, group=ranks, async_op=True)
            if needs_reduced_at_once(group, output):
                work.wait()
            else:
                self._under_way.append((work, given))
        return work

    def reduced(self, group: Group, replicas: ProcessGroupSmdp) -> None:
        """Notes that this rank's part of gradients has been asked for."""
        self._await_end()
        if replicas.size() > 1:
            self._reduced.append((group, replicas))
            self._local[id(group)] = (group, replicas)

    def _await_end(self) -> None:
        """Makes the end of this backward wait for what is under way."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            self._under_way.clear()
            self._reduced.clear()
            Variable._execution_engine.queue_callback(self._end)

    def _average_replicas(self, *, all_of_them: bool = False) -> None:
        """Starts to average what this backward has reduced, in the last one before a step."""
        if not self._is_last:
            return
        chosen = list(self._local.values()) if all_of_them else self._reduced
        if chosen:
            self._wait()
        for group, replicas in chosen:
            self._local.pop(id(group), None)
            for flat in _storages(gradients(group)):
                work = dist.all_reduce(flat, dist.ReduceOp.AVG, group=replicas, async_op=True)
                self._under_way.append((work, flat))
        self._reduced = []

    def _wait(self, left: int = 0) -> None:
        """Waits for the earliest operations until only some are left, and frees their gradients."""
        while len(self._under_way) > left:
            work, _ = self._under_way.pop(0)
            work.wait()

    def _end(self) -> None:
        """Waits at the end of a backward."""
        self._task = -1
        with self._ranks.told():
            self._average_replicas(all_of_them=True)
            self._wait()
        self._is_open = not self._is_last
        if not self._is_paused:
            self._count = (self._count + 1) % self._passes
        if self.at_end is not None:
            self.at_end()


class _ReduceScatter(ReduceScatter):
    def __init__(self, owner: AveragedShards, group: Group) -> None:
        self._owner, self._group = owner, group

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> dist.Work:
        return self._owner.reduce_scatter(self._group, output_tensor, input_tensor, group, op)


class _Reduced:
    def __init__(self, owner: AveragedShards, group: Group, replicas: ProcessGroupSmdp) -> None:
        self._owner, self._group, self._replicas = owner, group, replicas

    def __call__(self, output: Tensor) -> None:
        self._owner.reduced(self._group, self._replicas)


def _storages(parts: Iterator[Tensor]) -> list[Tensor]:
    """Returns the memory of parts that were reduced together, as flat tensors."""
    found: dict[tuple[int, torch.dtype], Tensor] = {}
    for part in parts:
        storage = part.untyped_storage()
        if storage.nbytes():
            size = storage.nbytes() // part.itemsize
            found.setdefault((storage.data_ptr(), part.dtype), part.as_strided((size,), (1,), 0))
    return list(found.values())
