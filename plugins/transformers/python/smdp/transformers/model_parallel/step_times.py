"""Measures how long training steps take and how long they wait for other ranks."""

from __future__ import annotations

from smdp.torch import PipelinedModule


class StepTimes:
    """Sums the times of this rank's steps."""

    def __init__(self) -> None:
        self._steps = 0
        self._all = 0
        self._waited = 0

    def add(self, pipe: PipelinedModule) -> None:
        """Adds the last step, unless this rank had nothing to do in it."""
        timeline = pipe.timeline
        if not timeline:
            return
        self._steps += 1
        self._all += timeline[-1].end - timeline[0].start
        self._waited += sum(timed.waited for timed in timeline)

    def means(self) -> dict[str, float]:
        """Returns milliseconds per step under their names in the log, or an empty dict without steps."""
        if not self._steps:
            return {}
        return {
            "smdp_pipeline_ms": 1e-6 * self._all / self._steps,
            "smdp_wait_ms": 1e-6 * self._waited / self._steps,
        }
