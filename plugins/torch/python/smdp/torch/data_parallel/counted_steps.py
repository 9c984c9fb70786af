"""Counts the steps of torch's own reducer, for `smdp.stats()` and traces."""

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

# Models of this process: made in the same order on all ranks.
_numbers = itertools.count()


class Told:
    """What each rank computed since its last step, told to all others beside the buckets.

    Args:
        group: Which averages the gradients.
    """

    def __init__(self, group: _core.Group) -> None:
        self._group = group
        self._seconds = torch.zeros(group.size, dtype=torch.float64)

    def set(self, seconds: float) -> None:
        """Take this rank's, before what `start` waits for arrives."""
        self._seconds[self._group.rank] = seconds

    def start(self, arrival: _core.Arrival | None) -> None:
        """Start to tell, when `arrival` has come; None: at once. Collective."""
        pointer = self._seconds.data_ptr()
        shape = self._seconds.shape
        dtype = DTYPES[torch.float64]
        handle = self._group.all_reduce(pointer, pointer, shape, dtype, _MAX, 1.0, _DEFAULT, True, arrival)
        self._work = HandleWork((handle,), [self._seconds], self._seconds)

    def seconds(self) -> list[float]:
        """Give them by rank of the world.

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
    """The steps of one model.

    A step waits from the end of backward until torch's reducer has all buckets back. The autograd engine
    calls in the order in which it was asked to, and the reducer asks last.

    Args:
        group: Name of the group that averages the gradients.
    """

    def __init__(self, group: str) -> None:
        self._name = f"{group}/torch-{next(_numbers)}"
        self._number = 0
        self._last_end = 0
        self._task = -1

    def seconds_computed(self) -> float:
        """Say what this rank computed since its last step; 0 in the first one, which has no beginning."""
        seconds = _core.seconds_computed(time.monotonic_ns())
        return seconds if self._number else 0.0

    def count(self, size: int, told: Told | None = None) -> None:
        """Count the backward that runs as a step, once it is over; outside of one, nothing.

        Args:
            size: Bytes of its gradients.
            told: What the ranks computed, if that is known.
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
        # A device computes until its last values come.
        begin = max(begin, arrivals.last_ns())
        _core.count_reduced_step(self._name, self._number, size, self._last_end, begin, end, seconds)
        self._number += 1
        self._last_end = end


def _call_back(function: Callable[[], None]) -> None:
    """Have a function called when backward is over, after those that were asked for before."""
    torch.autograd.Variable._execution_engine.queue_callback(function)


def bytes_of(tensors: list[Tensor]) -> int:
    """Give how many bytes tensors have."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
