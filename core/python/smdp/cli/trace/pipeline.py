"""Steps of a pipeline: what was planned, and what they took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from smdp._shown import counted
from smdp.cli.trace.files import Trace


@dataclass
class Pipeline:
    """Times are seconds of a step, medians over steps; the lists are by rank, in seconds per step.

    Attributes:
        steps: That ran by a plan known before; the first of each input signature is not one.
        planned_seconds: As simulated from the traced times of modules.
        measured_seconds: From the first action to the end.
        computing_seconds: In forwards and backwards.
        waiting_seconds: For what other ranks send.
        transfer_seconds: In sends, and reductions of gradients.
    """

    steps: int
    planned_seconds: float
    measured_seconds: float
    computing_seconds: list[float]
    waiting_seconds: list[float]
    transfer_seconds: list[float]

    @property
    def bubble(self) -> float:
        """The part of the ranks' time in which they do not compute."""
        return 1 - fmean(self.computing_seconds) / self.measured_seconds if self.measured_seconds else 0.0

    def lines(self) -> list[str]:
        """Give what a human wants to read."""
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
    """Read the steps of a pipeline; None where there are none."""
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
