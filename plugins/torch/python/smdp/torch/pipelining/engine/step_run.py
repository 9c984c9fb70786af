"""What the actions of one step work on, while they run."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from smdp.torch.pipelining.engine.microbatch import Microbatch
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.interpreter.plan import Plan

# Seconds between looks at host reads, while something else is waited for as well.
_PAUSE = 5e-5


class StepRun:
    """One step that runs.

    Args:
        step: What the microbatches share.
        microbatches: All of the step.
        is_recorded: Microbatch 0 has run its forward already.
        scale: Makes of a microbatch's loss what its backward begins with.
        is_in_lockstep: The row says where microbatches go on after host reads. Otherwise they go on when
            the values have come.

    Attributes:
        under_way: Microbatches that have begun, by index, until they end.
    """

    def __init__(
        self,
        step: Step,
        microbatches: list[Microbatch],
        *,
        is_recorded: bool,
        scale: Callable[[Tensor], Tensor],
        is_in_lockstep: bool = False,
    ) -> None:
        self.step = step
        self.plan: Plan = step.plan
        self.microbatches = microbatches
        self.scale = scale
        self.under_way: dict[int, Microbatch] = {}
        self._is_recorded = is_recorded
        self._is_in_lockstep = is_in_lockstep
        self._paused = 0.0

    @property
    def waited(self) -> float:
        """Seconds in which the step has waited for others."""
        return self.step.values.waited + self.step.reads.waited + self._paused

    def was_recorded(self, microbatch: int) -> bool:
        """Returns whether the forward of a microbatch has run before the schedule."""
        return self._is_recorded and microbatch == 0

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        """Serves host reads until something is there."""
        while not is_there():
            self.serve_reads()
            start = time.perf_counter()
            time.sleep(_PAUSE)
            self._paused += time.perf_counter() - start

    def serve_reads(self) -> None:
        """Lets microbatches go on, in their order, whose host reads have been answered; not in lockstep."""
        if self._is_in_lockstep:
            return
        for index in sorted(self.under_way):
            microbatch = self.under_way[index]
            control = microbatch.control
            while control.is_suspended:
                if control.is_blocked():
                    break  # a later one may go on, inside the model; after it turns keep the order
                control.resume()
            if control.is_finished:
                del self.under_way[index]

    def finish(self) -> None:
        """Runs all microbatches to their ends."""
        for microbatch in self.microbatches:
            microbatch.finish()
        self.step.values.finish()
        self.step.reads.finish()
