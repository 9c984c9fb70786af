"""Executes one rank's row of a schedule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from smdp._errors import SmdpError
from smdp.torch.pipelining.engine.actions import COMPUTATIONS, Action
from smdp.torch.pipelining.engine.handlers import Handlers
from smdp.torch.pipelining.engine.step_run import StepRun

# How many computations ahead of their place in the schedule receives are posted.
_AHEAD = 2


@dataclass(frozen=True, slots=True)
class Timed:
    """When an action ran and how long it waited for other ranks, in ns of time.monotonic_ns()."""

    text: str
    start: int
    end: int
    waited: int


class Executor:
    """Runs the actions of one step.

    Args:
        row: The actions of this rank.
        handlers: The handlers that perform them.
    """

    def __init__(self, row: Sequence[Action], handlers: Handlers) -> None:
        self._row = row
        self._handlers = handlers
        self._posted = 0
        self._ahead = 0
        self.timeline: list[Timed] = []

    def execute(self, run: StepRun) -> None:
        """Runs all actions, and then all microbatches to their ends.

        Raises:
            smdp.SmdpError: A transfer failed; the message names the action.
        """
        for action in self._row:
            self._post(run)
            start = time.monotonic_ns()
            before = run.waited
            try:
                self._handlers[action.kind].perform(action, run)
            except SmdpError as error:
                text = (
                    f"{error.args[0] if error.args else ''} The action was {action.text} of rank"
                    f" {run.step.rank}."
                )
                error.args = (text, *error.args[1:])
                raise
            waited = int(1e9 * (run.waited - before))
            self.timeline.append(Timed(action.text, start, time.monotonic_ns(), waited))
            self._ahead -= action.kind in COMPUTATIONS
            run.serve_reads()
        run.finish()

    def _post(self, run: StepRun) -> None:
        """Posts the actions up to the second computation from here, in the order of the row."""
        while self._ahead < _AHEAD and self._posted < len(self._row):
            action = self._row[self._posted]
            self._posted += 1
            self._handlers[action.kind].post(action, run)
            self._ahead += action.kind in COMPUTATIONS
