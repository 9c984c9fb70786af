"""The state of a running step, on which its actions work."""

from __future__ import annotations

import time
from collections.abc import Callable

from torch import Tensor

from smdp.torch.pipelining.engine.microbatch import Microbatch
from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.interpreter.plan import Plan

# Seconds between checks of host reads while the rank also waits for something else.
_PAUSE = 5e-5


class StepRun:
    """One running step.

    Args:
        step: The state shared by the microbatches of the step.
        microbatches: All microbatches of the step.
        is_recorded: Whether microbatch 0 has already run its forward.
        scale: Returns the tensor from which backward starts, given a microbatch's loss.
        is_in_lockstep: Whether the row contains the places where microbatches resume after host reads.
            Otherwise they resume when the values have arrived.

    Attributes:
        under_way: Microbatches that have begun and not ended, by index.
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
        """Seconds that the step has waited for other ranks."""
        return self.step.values.waited + self.step.reads.waited + self._paused

    def was_recorded(self, microbatch: int) -> bool:
        """Returns whether the forward of a microbatch ran before the schedule, when it was recorded."""
        return self._is_recorded and microbatch == 0

    def wait_until(self, is_there: Callable[[], bool]) -> None:
        """Serves host reads until a condition holds."""
        while not is_there():
            self.serve_reads()
            start = time.perf_counter()
            time.sleep(_PAUSE)
            self._paused += time.perf_counter() - start

    def serve_reads(self) -> None:
        """Resumes, in order, microbatches whose host reads are answered; does nothing in lockstep."""
        if self._is_in_lockstep:
            return
        for index in sorted(self.under_way):
            microbatch = self.under_way[index]
            control = microbatch.control
            while control.is_suspended:
                if control.is_blocked():
                    break  # a later microbatch may resume inside the model; after it, turns keep the order
                control.resume()
            if control.is_finished:
                del self.under_way[index]

    def finish(self) -> None:
        """Runs all microbatches to their ends."""
        for microbatch in self.microbatches:
            microbatch.finish()
        self.step.values.finish()
        self.step.reads.finish()
