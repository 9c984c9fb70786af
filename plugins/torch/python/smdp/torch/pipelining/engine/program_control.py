"""Suspends the program of a microbatch before stages, for values, and until its turn."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.transfers.transfers import Arrival


class ProgramControl:
    """Suspends and resumes the program of a microbatch.

    Args:
        step: The state shared by the microbatches of the step.
        index: Index of the microbatch.
        program: The function to run on its own thread; it calls the methods that wait.

    Attributes:
        read: The host read that the program waits for; None if there is none.
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

    # Called by the engine.

    @property
    def is_finished(self) -> bool:
        """Whether the program has ended on this rank."""
        return self._coroutine.is_finished

    @property
    def is_suspended(self) -> bool:
        """Whether the program waits for a host read or for its turn."""
        return self.read is not None or self._waits_for_turn

    def is_blocked(self) -> bool:
        """Returns whether the program would suspend again if it were resumed."""
        awaited = self.read or self._value
        if awaited is not None and not awaited.is_there():
            return True
        return self._waits_for_turn and self._step.turn < self._index

    def allow(self, stage: int) -> None:
        """Allows the program to run this rank's stages up to and including one."""
        self._may_run = stage

    def allow_all(self) -> None:
        """Allows the program to run to its end."""
        self._may_run = len(self._step.rank_of)

    def is_past(self, stage: int) -> bool:
        """Returns whether the program has ended or waits for permission to run a later stage."""
        return self._coroutine.is_finished or self._wants > stage

    def resume(self) -> None:
        """Resumes the program until it suspends again or ends."""
        self._coroutine.resume()

    def abandon(self) -> None:
        """Ends the program where it is suspended."""
        self._coroutine.abandon()

    # Called by the program.

    def enter(self, stage: int) -> None:
        """Suspends the program until the schedule runs a stage."""
        self._step.has_begun = True
        while stage > self._may_run:
            self._wants = stage
            self._coroutine.suspend()
        self._wants = -1

    def wait_for_read(self, arrival: Arrival) -> Tensor:
        """Suspends the program until a host read is answered."""
        self.read = arrival
        self._step.reading += 1
        while not arrival.is_there():
            self._coroutine.suspend()
        self._step.reading -= 1
        self.read = None
        return arrival.wait()

    def wait_for_value(self, arrival: Arrival) -> Tensor:
        """Waits for a value of another stage.

        While host reads are pending, the program suspends instead of blocking, because the other rank may
        wait for a read that this rank answers.
        """
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
        """Passes the turn to the next microbatch."""
        self._step.turn += 1
