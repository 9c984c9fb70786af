"""When the program of a microbatch runs: it stops before stages, for values, and for its turn."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.transfers.transfers import Arrival


class ProgramControl:
    """Resumes the program of a microbatch, and suspends it.

    Args:
        step: What the microbatch shares with the others.
        index: Number of the microbatch.
        program: Runs on a thread of its own, and calls the methods that wait.

    Attributes:
        read: What the host reads next, while the program waits for it.
    """

    def __init__(self, step: Step, index: int, program: Callable[[], None]) -> None:
        self.read: Arrival | None = None
        self._step = step
        self._index = index
        self._coroutine = step.coroutines.start(program)
        self._value: Arrival | None = None
        self._waits_for_turn = False
        self._may_run = -1
        self._wants = -1

    # What the engine calls.

    @property
    def is_finished(self) -> bool:
        """Whether the program has ended on this rank."""
        return self._coroutine.is_finished

    @property
    def is_suspended(self) -> bool:
        """Whether the program waits for a value that the host reads, or for its turn."""
        return self.read is not None or self._waits_for_turn

    def is_blocked(self) -> bool:
        """Returns whether the program would wait again, if it went on."""
        awaited = self.read or self._value
        if awaited is not None and not awaited.is_there():
            return True
        return self._waits_for_turn and self._step.turn < self._index

    def allow(self, stage: int) -> None:
        """Lets the program run this rank's stages up to one."""
        self._may_run = stage

    def allow_all(self) -> None:
        """Lets the program run to its end."""
        self._may_run = len(self._step.rank_of)

    def is_past(self, stage: int) -> bool:
        """Returns whether the program has ended, or waits for leave to run a later stage."""
        return self._coroutine.is_finished or self._wants > stage

    def resume(self) -> None:
        """Lets the program go on until it is suspended again, or ends."""
        self._coroutine.resume()

    def abandon(self) -> None:
        """Ends the program where it is."""
        self._coroutine.abandon()

    # What the program calls.

    def enter(self, stage: int) -> None:
        """Suspends the program until the schedule lets a stage run."""
        self._step.has_begun = True
        while stage > self._may_run:
            self._wants = stage
            self._coroutine.suspend()
        self._wants = -1

    def wait_for_read(self, arrival: Arrival) -> Tensor:
        """Suspends the program until a value is there that the host reads."""
        self.read = arrival
        self._step.reading += 1
        while not arrival.is_there():
            self._coroutine.suspend()
        self._step.reading -= 1
        self.read = None
        return arrival.wait()

    def wait_for_value(self, arrival: Arrival) -> Tensor:
        """Waits for another stage; while host reads are open, its rank may wait for one of ours."""
        if self._step.reading > 0:
            self._value = arrival
            while not arrival.is_there():
                self._coroutine.suspend()
            self._value = None
        return arrival.wait()

    def wait_for_turn(self) -> None:
        """Suspends until earlier microbatches' programs have ended: `total += loss.item()` is not atomic."""
        self._waits_for_turn = True
        while self._step.turn < self._index:
            self._coroutine.suspend()
        self._waits_for_turn = False

    def end_turn(self) -> None:
        """Gives the turn to the next microbatch."""
        self._step.turn += 1
