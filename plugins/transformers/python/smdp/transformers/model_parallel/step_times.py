"""How long training steps take, and how long they wait for other ranks."""

from __future__ import annotations

from smdp.torch import PipelinedModule


class StepTimes:
    """Sums over steps, of this rank."""

    def __init__(self) -> None:
        self._steps = 0
        self._all = 0
        self._waited = 0

    def add(self, pipe: PipelinedModule) -> None:
        """Counts the last step; a rank that had nothing to do in it has no times."""
        timeline = pipe.timeline
        if not timeline:
            return
        self._steps += 1
        self._all += timeline[-1].end - timeline[0].start
        self._waited += sum(timed.waited for timed in timeline)

    def means(self) -> dict[str, float]:
        """Give milliseconds per step, as the Trainer's log names them; nothing if there was none."""
        if not self._steps:
            return {}
        return {
            "smdp_pipeline_ms": 1e-6 * self._all / self._steps,
            "smdp_wait_ms": 1e-6 * self._waited / self._steps,
        }
