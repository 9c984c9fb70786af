"""Reports where the time of training steps went, from the traces of all ranks."""

from __future__ import annotations

import dataclasses
import itertools
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, TypeAlias

from smdp._shown import counted
from smdp.cli.trace.files import Trace
from smdp.cli.trace.pipeline import Pipeline, pipeline_of

_Step: TypeAlias = tuple[str, int]  # the group of a gradient reducer, and the number of its step


@dataclass
class Operation:
    """Operations of one kind and one algorithm, summed over ranks."""

    name: str
    algorithm: str
    calls: int = 0
    bytes: int = 0
    seconds: float = 0.0


@dataclass
class Report:
    """Times of training steps, in seconds per step: means over steps, except `median_step_seconds`.

    `input_seconds` is also a mean over ranks. `straggler_seconds` is how long the first rank that reaches the
    exchange of gradients waits for the last one.

    If several models are trained in turn, the steps of the model with the most steps are counted; they
    include the time of the other models.
    """

    ranks: int
    steps: int
    step_seconds: float
    median_step_seconds: float
    input_seconds: float
    communication_seconds: float
    straggler_seconds: float
    slowest_rank: int | None
    slowest_share: float
    operations: list[Operation]
    hosts: int = 1
    pipeline: Pipeline | None = None

    def as_dict(self) -> dict[str, Any]:
        """Returns the report as plain data."""
        return dataclasses.asdict(self)

    def as_text(self) -> str:
        """Returns the report as text."""
        lines = []
        if self.steps:
            lines.append(f"{counted(self.ranks, 'rank')}, {counted(self.steps, 'step')}")
            usual = 1e3 * self.median_step_seconds
            lines += [
                f"{'step':<44}{1e3 * self.step_seconds:10.1f} ms   (median {usual:.1f} ms)",
                self._line("waiting for input data", self.input_seconds),
                self._line("exposed communication", self.communication_seconds),
                self._line(f"waiting for slower ranks{self._slowest()}", self.straggler_seconds),
                "",
                self._verdict(),
            ]
        if self.pipeline is not None:
            lines += [*([""] if lines else []), *self.pipeline.lines()]
        if not lines:
            lines += [
                f"{counted(self.ranks, 'rank')}, no training steps. Steps are recorded by",
                "smdp.torch.DistributedDataParallel, smdp.torch.comm_hook, smdp.torch.pipeline and",
                "smdp.tensorflow",
            ]
        lines += ["", f"{'operation':<16}{'algorithm':<20}{'calls':>9}{'MB':>12}{'ms per call':>13}"]
        for one in self.operations:
            lines.append(
                f"{one.name:<16}{one.algorithm:<20}{one.calls:>9}{one.bytes / 1e6:>12.1f}"
                f"{1e3 * one.seconds / one.calls:>13.3f}"
            )
        return "\n".join(lines)

    def _line(self, what: str, seconds: float) -> str:
        return f"  {what:<42}{1e3 * seconds:10.1f} ms{100 * seconds / self.step_seconds:7.1f} %"

    def _slowest(self) -> str:
        if self.slowest_rank is None or self.ranks == 1:
            return ""
        return f" (rank {self.slowest_rank} in {100 * self.slowest_share:.0f} %)"

    def _verdict(self) -> str:
        where = "between hosts" if self.hosts > 1 else "inside this host, by shared memory"
        causes = {
            "the data loader: ranks wait for input": self.input_seconds,
            f"communication {where} that does not overlap with computation": self.communication_seconds,
            f"rank {self.slowest_rank}, the slowest in {100 * self.slowest_share:.0f} % of steps: "
            "the others wait for it": self.straggler_seconds,
        }
        worst, seconds = max(causes.items(), key=lambda cause: cause[1])
        if seconds < 0.05 * self.step_seconds:
            return "Nothing stands out: no single cause of waiting takes 5 % of a step or more."
        return f"Most time is lost to {worst}."


def report(traces: list[Trace], shifts: dict[int, float]) -> Report:
    """Computes the report from traces.

    In every step, the last rank to reach the exchange of gradients waits for the exchange only. Any
    additional time that the first rank waits is attributed to the last one.

    Args:
        traces: The traces of all ranks.
        shifts: Microseconds to add to each rank's times.
    """
    arrivals: dict[_Step, dict[int, float]] = defaultdict(dict)
    exposed: dict[_Step, dict[int, float]] = defaultdict(dict)
    lengths: dict[str, list[float]] = defaultdict(list)
    last: dict[int, dict[_Step, float]] = defaultdict(dict)  # the end of each step, by rank
    waits: dict[int, list[tuple[float, float]]] = {}
    for trace in traces:
        events = [event for event in trace.spans if event["cat"] == "step"]
        # The trace does not contain the beginning of the first step, so events before its end do not count.
        started = min((event["ts"] for event in events if event["name"] == "compute"), default=float("inf"))
        ends: dict[str, dict[int, float]] = defaultdict(dict)
        for event in events:
            group, number = event["args"].get("group", ""), int(event["args"]["step"])
            if event["name"] != "exposed communication":
                continue
            end = event["ts"] + event["dur"]
            ends[group][number] = last[trace.rank][group, number] = max(ends[group].get(number, 0.0), end)
            if number > 0:
                # A step has several such events if the next forward waits for gradients one by one.
                arrival = event["ts"] + shifts[trace.rank]
                step = (group, number)
                arrivals[step][trace.rank] = min(arrival, arrivals[step].get(trace.rank, arrival))
                exposed[step][trace.rank] = exposed[step].get(trace.rank, 0.0) + event["dur"] / 1e6
        for group, times in ends.items():
            lengths[group] += [
                (after - before) / 1e6 for before, after in itertools.pairwise(sorted(times.values()))
            ]
        waits[trace.rank] = [
            (e["ts"], e["dur"] / 1e6) for e in trace.spans if e["cat"] == "input" and e["ts"] >= started
        ]
    whole = {step: times for step, times in arrivals.items() if len(times) == len(traces)}
    slowest: dict[int, int] = defaultdict(int)
    communication = straggling = 0.0
    for step, times in whole.items():
        slowest[max(times, key=lambda rank: times[rank])] += 1
        own = min(exposed[step].values())
        communication += own
        straggling += max(exposed[step].values()) - own
    worst = max(slowest, key=lambda rank: slowest[rank], default=None)
    leading = _leading(whole)
    steps = sum(group in leading for group, _ in whole)
    count = max(1, steps)
    # Some traces may end before others; waits after the last common step are not counted.
    until = {rank: max((ends[step] for step in whole), default=0.0) for rank, ends in last.items()}
    waited = sum(
        took
        for rank, all_of_them in waits.items()
        for begin, took in all_of_them
        if begin < until.get(rank, 0.0)
    )
    every = [length for group in leading for length in lengths[group]] or [0.0]
    return Report(
        ranks=len(traces),
        steps=steps,
        step_seconds=fmean(every),
        median_step_seconds=median(every),
        input_seconds=waited / count / len(traces),
        communication_seconds=communication / count,
        straggler_seconds=straggling / count,
        slowest_rank=worst,
        slowest_share=slowest[worst] / len(whole) if worst is not None else 0.0,
        operations=_operations(traces),
        hosts=len({trace.clock for trace in traces}),
        pipeline=pipeline_of(traces),
    )


def _leading(arrivals: Mapping[_Step, Mapping[int, float]]) -> list[str]:
    """Returns the groups whose steps are counted.

    Of models that are trained in turn, that is the one with the most steps; of models that are trained one
    after the other, it is each of them.
    """
    times: dict[str, list[float]] = defaultdict(list)
    for (group, _), ranks in arrivals.items():
        times[group] += ranks.values()
    leading: list[str] = []
    for group in sorted(times, key=lambda group: -len(times[group])):
        if not any(_overlap(times[group], times[other]) for other in leading):
            leading.append(group)
    return leading


def _overlap(some: list[float], others: list[float]) -> bool:
    """Returns whether more than half of the shorter time span lies within the other."""
    common = min(max(some), max(others)) - max(min(some), min(others))
    return common > min(max(some) - min(some), max(others) - min(others)) / 2


def _operations(traces: list[Trace]) -> list[Operation]:
    found: dict[tuple[str, str], Operation] = {}
    for trace in traces:
        for event in trace.spans:
            if event["cat"] != "operation":
                continue
            key = (event["name"], event["args"]["algorithm"])
            one = found.setdefault(key, Operation(*key))
            one.calls += 1
            one.bytes += event["args"]["bytes"]
            one.seconds += event["dur"] / 1e6
    return sorted(found.values(), key=lambda one: -one.seconds)
