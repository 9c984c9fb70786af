"""Pipeline steps in a trace: planned and measured times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from smdp._shown import counted
from smdp.cli.trace.files import Trace


@dataclass
class Pipeline:
    """Times of pipeline steps: medians over steps, in seconds. Lists have one mean per rank.

    Attributes:
        steps: Number of steps that followed an existing plan. The first step of each input signature, which
            makes the plan, does not count.
        planned_seconds: Step time as simulated from the measured times of modules.
        measured_seconds: Time from the first action to the end.
        computing_seconds: Time in forwards and backwards.
        waiting_seconds: Time waiting for data from other ranks.
        transfer_seconds: Time in sends and in reductions of gradients.
    """

    steps: int
    planned_seconds: float
    measured_seconds: float
    computing_seconds: list[float]
    waiting_seconds: list[float]
    transfer_seconds: list[float]

    @property
    def bubble(self) -> float:
        """The fraction of the ranks' time in which they do not compute."""
        return 1 - fmean(self.computing_seconds) / self.measured_seconds if self.measured_seconds else 0.0

    def lines(self) -> list[str]:
        """Returns the lines of the text report."""
        ratio = self.measured_seconds / self.planned_seconds if self.planned_seconds else 0.0
        lines = [
            f"pipeline of {counted(len(self.computing_seconds), 'rank')}, {counted(self.steps, 'step')}",
            f"{'planned step':<44}{1e3 * self.planned_seconds:10.1f} ms",
            f"{'measured step':<44}{1e3 * self.measured_seconds:10.1f} ms{ratio:7.2f} x planned",
            f"{'bubble':<44}{100 * self.bubble:10.1f} %",
        ]
        rows = zip(self.computing_seconds, self.waiting_seconds, self.transfer_seconds, strict=True)
        lines += [
            f"  rank {rank:<4} computing {1e3 * computing:8.1f} ms, waiting {1e3 * waiting:8.1f} ms,"
            f" transfers {1e3 * transfer:8.1f} ms"
            for rank, (computing, waiting, transfer) in enumerate(rows)
        ]
        return lines


def pipeline_of(traces: Sequence[Trace]) -> Pipeline | None:
    """Returns the times of pipeline steps, or None if the traces have no such steps."""
    measured = _seconds(traces[0], "pipeline step")
    if not measured:
        return None
    planned = _seconds(traces[0], "planned step")
    return Pipeline(
        steps=len(measured),
        planned_seconds=median(planned),
        measured_seconds=median(measured),
        computing_seconds=[_per_step(trace, "pipeline") for trace in traces],
        waiting_seconds=[_per_step(trace, "pipeline wait") for trace in traces],
        transfer_seconds=[_per_step(trace, "pipeline transfer") for trace in traces],
    )


def _seconds(trace: Trace, category: str) -> list[float]:
    return [event["dur"] / 1e6 for event in trace.spans if event["cat"] == category]


def _per_step(trace: Trace, category: str) -> float:
    return sum(_seconds(trace, category)) / max(1, len(_seconds(trace, "pipeline step")))
