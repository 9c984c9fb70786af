"""Writes the planned and measured times of a step to the trace requested by SMDP_TRACE."""

from __future__ import annotations

from collections.abc import Sequence

from smdp import _core, pipeline
from smdp.partition import Partition
from smdp.torch.pipelining.engine.actions import COMPUTATIONS
from smdp.torch.pipelining.engine.executor import Timed

_PLANNED = "planned pipeline"
_MEASURED = "pipeline"


class Timeline:
    """Writes the actions of steps next to the plan. `smdp trace` reads both.

    Args:
        schedule: The schedule as executed.
        partition: The stages with their times in seconds.
        rank: The rank of this process within the pipeline.
    """

    def __init__(self, schedule: pipeline.Schedule, partition: Partition, rank: int) -> None:
        simulation = pipeline.simulate(
            schedule,
            forward=[stage.forward for stage in partition.stages],
            backward_input=[stage.backward_input for stage in partition.stages],
            backward_weight=[stage.backward_weight for stage in partition.stages],
        )
        self._makespan = simulation.makespan
        self._planned = simulation.timeline[rank]

    def write(self, actions: Sequence[Timed], end: int) -> None:
        """Writes one step.

        Args:
            actions: The actions of this rank.
            end: End of the step, in ns of time.monotonic_ns().
        """
        if not actions:
            return
        start = actions[0].start
        _core.trace_span(_MEASURED, "pipeline step", "step", start, end)
        _core.trace_span(_PLANNED, "planned step", "step", start, start + int(1e9 * self._makespan))
        for action in actions:
            # The wait comes first: the action itself begins once its inputs have arrived.
            begin = action.start + action.waited
            if action.waited:
                _core.trace_span(_MEASURED, "pipeline wait", "wait", action.start, begin)
            kind = "pipeline" if is_computation(action.text) else "pipeline transfer"
            _core.trace_span(_MEASURED, kind, action.text, begin, action.end)
        for planned in self._planned:
            if is_computation(planned.action):
                begin = start + int(1e9 * planned.start)
                _core.trace_span(_PLANNED, "planned", planned.action, begin, start + int(1e9 * planned.end))


def is_computation(text: str) -> bool:
    """Returns whether an action, as written in a schedule, is a computation."""
    return text.startswith("(") or text.lstrip("0123456789").rstrip("0123456789") in COMPUTATIONS
