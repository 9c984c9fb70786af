"""Counts the steps of torch's reducer for `smdp.stats()` and traces."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable

import torch
from torch import Tensor

from smdp import _core
from smdp.torch.process_group import arrivals
from smdp.torch.process_group.tensors import DTYPES, REDUCTIONS
from smdp.torch.process_group.work import HandleWork

_DEFAULT = -1.0  # the group's timeout
_MAX = REDUCTIONS[hash(torch.distributed.ReduceOp.MAX)]

# Numbers the models of this process, which are created in the same order on all ranks.
_numbers = itertools.count()


class Told:
    """Tells all ranks how long each of them has computed since its last step.

    Args:
        group: The group that averages the gradients.
    """

    def __init__(self, group: _core.Group) -> None:
        self._group = group
        self._seconds = torch.zeros(group.size, dtype=torch.float64)

    def set(self, seconds: float) -> None:
        """Sets this rank's seconds, before the arrival passed to `start()`."""
        self._seconds[self._group.rank] = seconds

    def start(self, arrival: _core.Arrival | None) -> None:
        """Starts the exchange after `arrival`, or at once if it is None. Collective."""
        pointer = self._seconds.data_ptr()
        shape = self._seconds.shape
        dtype = DTYPES[torch.float64]
        handle = self._group.all_reduce(pointer, pointer, shape, dtype, _MAX, 1.0, _DEFAULT, True, arrival)
        self._work = HandleWork((handle,), [self._seconds], self._seconds)

    def seconds(self) -> list[float]:
        """Waits for the exchange and returns the seconds by rank in the world.

        Raises:
            smdp.SmdpError: The group has failed.
        """
        self._work.wait()
        places = [self._group.world_rank(rank) for rank in range(self._group.size)]
        seconds = [0.0] * (max(places) + 1)
        for place, value in zip(places, self._seconds.tolist(), strict=True):
            seconds[place] = value
        return seconds


class CountedSteps:
    """Counts the steps of one model.

    The waiting time of a step begins at the end of backward and ends when torch's reducer has received all
    buckets. The autograd engine runs its callbacks in the order of their registration, and the reducer
    registers last.

    Args:
        group: The name of the group that averages the gradients.
    """

    def __init__(self, group: str) -> None:
        self._name = f"{group}/torch-{next(_numbers)}"
        self._number = 0
        self._last_end = 0
        self._task = -1

    def seconds_computed(self) -> float:
        """Returns the seconds that this rank has computed since its last step, 0 in the first step."""
        seconds = _core.seconds_computed(time.monotonic_ns())
        return seconds if self._number else 0.0

    def count(self, size: int, told: Told | None = None) -> None:
        """Counts the running backward as a step when it ends. Outside a backward it does nothing.

        Args:
            size: The size of its gradients in bytes.
            told: The exchange of computing times in this step, if there is one.
        """
        task = torch._C._current_graph_task_id()
        if task in (-1, self._task):
            return
        self._task = task
        _call_back(lambda: self._begin(size, told))

    def _begin(self, size: int, told: Told | None) -> None:
        begin = time.monotonic_ns()
        if told is None:
            self.seconds_computed()
        _call_back(lambda: self._end(size, told, begin))

    def _end(self, size: int, told: Told | None, begin: int) -> None:
        seconds = [] if told is None else told.seconds()
        end = time.monotonic_ns()
        # A device computes until its last values arrive.
        begin = max(begin, arrivals.last_ns())
        _core.count_reduced_step(self._name, self._number, size, self._last_end, begin, end, seconds)
        self._number += 1
        self._last_end = end


def _call_back(function: Callable[[], None]) -> None:
    """Calls a function at the end of backward, after those registered before."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def bytes_of(tensors: list[Tensor]) -> int:
    """Returns the total size of tensors in bytes."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
