"""The means of the last backward, which arrive one fusion buffer after the other."""

from __future__ import annotations

import weakref
from collections.abc import Iterator

import torch
from torch import Tensor

from smdp import _core
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.reducer_options import KEEPING_COMPRESSIONS
from smdp.torch.process_group.profiling import ranged

_PARTS = 8  # in which an update is made; each has a cost of its own


class MeansUnderWay:
    """Waits for means where they are used, not at the end of backward.

    Args:
        reducer: Averages the gradients.
        hooks: Hand gradients over during backward. Without them, means have arrived when their step ends.

    Attributes:
        is_over: Whether all means have arrived.
    """

    def __init__(self, reducer: _core.GradientReducer, hooks: GradientHooks | None) -> None:
        self._reducer = reducer
        # Gradients keep this object, but must not keep a wrapper that was replaced.
        self._hooks = None if hooks is None else weakref.ref(hooks)
        buffers = reducer.sharded_buffers
        self._first = [buffer.members[0][0] for buffer in buffers]  # a gradient of each
        self._sizes = [buffer.count for buffer in buffers]
        self._lent: list[Tensor] = []
        self.is_over = True

    @property
    def steps(self) -> int:
        """The number of backward passes whose gradients were averaged or are being averaged."""
        return self._reducer.steps + (not self.is_over)

    def hold(self) -> None:
        """Replaces the gradients of a backward that has just ended with means, which may still arrive."""
        hooks = None if self._hooks is None else self._hooks()
        assert hooks is not None  # they call this
        self.is_over = False
        parameters = hooks.parameters
        # Whether another rank has used a parameter is known only when all means have arrived. Compression
        # that keeps errors ends the step with a collective, which must come before those of the update.
        missing = {index for index, one in enumerate(parameters) if one.grad is None} - hooks.freed
        if hooks.compression in KEEPING_COMPRESSIONS or missing:
            self.end()
        with torch.no_grad():
            for index, parameter in enumerate(parameters):
                mean = hooks.deliver(index, parameter.grad)
                if parameter.grad is not mean:
                    parameter.grad = mean
            if hooks.momentum:
                hooks.add_momentum()

    def settle(self) -> None:
        """Waits until all means have arrived."""
        self.end()

    def lend(self, *memory: Tensor | None) -> None:
        """Keeps memory that the reducer uses alive until all means have arrived."""
        if not self.is_over:
            self._lent.extend(one for one in memory if one is not None)

    def in_order(self) -> Iterator[list[int]]:
        """Returns the fusion buffers as their means arrive, with the front layers as early as possible.

        Buffers that have arrived come together, but not more than a part of all, so that the first can travel
        back while others are updated.
        """
        left = list(range(len(self._first)))
        most = sum(self._sizes) / _PARTS
        while left:
            taken: list[int] = []
            while left and (not taken or sum(self._sizes[number] for number in taken) < most):
                number = self._next(left)
                if taken and not self._has(number):
                    break
                if not self.is_over:
                    with ranged("wait for gradients"):
                        self._reducer.wait_for(self._first[number])
                left.remove(number)
                taken.append(number)
            yield taken

    def end(self) -> None:
        """Waits until all means have arrived."""
        if self.is_over:
            return
        with ranged("wait for gradients"):
            self._reducer.wait()
        self.is_over = True
        self._lent.clear()

    def _next(self, left: list[int]) -> int:
        """Returns the buffer of the front layers, or one that has arrived earlier."""
        front = left[-1]
        return front if self._has(front) else next((number for number in left if self._has(number)), front)

    def _has(self, number: int) -> bool:
        return self.is_over or self._reducer.has_means(number)
