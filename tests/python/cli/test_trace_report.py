"""What `smdp trace report` makes of the steps of several models."""

from __future__ import annotations

import re
from typing import Any

import pytest

from smdp.cli.trace.files import Trace
from smdp.cli.trace.report import report


def span(group: str, number: int, begin: float, seconds: float) -> dict[str, Any]:
    args = {"group": group, "step": number}
    return {
        "cat": "step",
        "name": "exposed communication",
        "ts": 1e6 * begin,
        "dur": 1e6 * seconds,
        "args": args,
    }


def trace_of(rank: int, *models: tuple[str, float, int, float]) -> Trace:
    """Give the trace of models: name, when the first step ends, number of steps, seconds between them."""
    spans = [
        span(name, number, begin + number * pause, 0.1 + 0.1 * rank)
        for name, begin, count, pause in models
        for number in range(count)
    ]
    return Trace(rank=rank, size=2, clock="", spans=spans)


@pytest.mark.parametrize(
    ("models", "steps", "communication", "length"),
    [
        ([("a", 0.0, 11, 1.0)], 10, 0.1, 1.0),
        # In turn: as of a GAN, and with a critic of five steps.
        ([("a", 0.0, 11, 1.0), ("b", 0.5, 11, 1.0)], 10, 0.2, 1.0),
        ([("a", 0.0, 51, 1.0), ("b", 0.5, 11, 5.0)], 50, 0.12, 1.0),
        # One after the other, also where the seams overlap.
        ([("a", 0.0, 11, 1.0), ("b", 20.0, 21, 1.0)], 30, 0.1, 1.0),
        ([("a", 0.0, 11, 1.0), ("b", 8.5, 11, 1.0), ("c", 18.0, 11, 1.0)], 30, 0.1, 1.0),
    ],
)
def test_steps_of_several_models(
    models: list[tuple[str, float, int, float]], steps: int, communication: float, length: float
) -> None:
    found = report([trace_of(rank, *models) for rank in range(2)], {0: 0.0, 1: 0.0})
    assert found.steps == steps
    assert found.communication_seconds == pytest.approx(communication)
    assert found.straggler_seconds == pytest.approx(communication)
    assert found.step_seconds == pytest.approx(length, abs=0.11)


def test_one_long_stall_is_part_of_the_time_and_not_more() -> None:
    trace = trace_of(0, ("a", 0.0, 11, 1.0))
    for event in trace.spans[5:]:
        event["ts"] += 90e6
    trace.spans.insert(0, {"cat": "step", "name": "compute", "ts": 0.0, "dur": 1.0, "args": {"step": 0}})
    trace.spans.append({"cat": "input", "name": "wait", "ts": 4.5e6, "dur": 90e6, "args": {}})
    found = report([trace], {0: 0.0})
    assert found.median_step_seconds == pytest.approx(1.0)
    assert found.step_seconds == pytest.approx(10.0)
    assert found.input_seconds == pytest.approx(9.0)
    assert "  90.0 %" in found.as_text()


def test_waits_behind_the_end_of_another_trace_do_not_count() -> None:
    whole, short = trace_of(0, ("a", 0.0, 11, 1.0)), trace_of(1, ("a", 0.0, 6, 1.0))
    for trace in whole, short:
        trace.spans.insert(0, {"cat": "step", "name": "compute", "ts": 0.0, "dur": 1.0, "args": {"step": 0}})
        trace.spans += [
            {"cat": "input", "name": "wait", "ts": event["ts"] - 0.6e6, "dur": 0.5e6, "args": {}}
            for event in trace.spans[2:]
        ]
    found = report([whole, short], {0: 0.0, 1: 0.0})
    assert found.steps == 5
    assert found.input_seconds == pytest.approx(0.5)


def test_a_slow_rank_is_judged_by_how_late_it_comes() -> None:
    """The table and the last line have one definition: how long the first rank waits for the last one."""
    one, two = trace_of(0, ("a", 0.0, 11, 1.0)), trace_of(1, ("a", 0.0, 11, 1.0))
    for late, trace in ((0.0, one), (0.3, two)):
        trace.spans.insert(0, {"cat": "step", "name": "compute", "ts": 0.0, "dur": 1.0, "args": {"step": 0}})
        for event in trace.spans[1:]:
            event["dur"] = 1e6 * (0.4 - late)
            event["ts"] += 1e6 * late
        trace.spans += [
            {"cat": "input", "name": "wait", "ts": event["ts"] - 0.6e6, "dur": 0.2e6, "args": {}}
            for event in trace.spans[2:]
        ]
    found = report([one, two], {0: 0.0, 1: 0.0})
    assert found.straggler_seconds == pytest.approx(0.3)
    text = found.as_text()
    assert re.search(r"waiting for slower ranks \(rank 1 in 100 %\) +300\.0 ms", text), text
    assert "Most time is lost to rank 1, the slowest in 100 % of steps" in text


@pytest.mark.parametrize(
    ("clocks", "where"), [(("a", "a"), "inside this host, by shared memory"), (("a", "b"), "between hosts")]
)
def test_exposed_communication_says_where_it_happens(clocks: tuple[str, str], where: str) -> None:
    traces = [trace_of(0, ("a", 0.0, 11, 1.0)), trace_of(0, ("a", 0.0, 11, 1.0))]
    for rank, trace in enumerate(traces):
        trace.rank, trace.clock = rank, clocks[rank]
    last = report(traces, {0: 0.0, 1: 0.0})._verdict()
    assert last == f"Most time is lost to communication {where} that does not overlap with computation."


def test_a_job_whose_steps_nobody_counts() -> None:
    args = {"algorithm": "two_shot", "bytes": 100}
    operation = {"cat": "operation", "name": "all_reduce", "ts": 0.0, "dur": 1.0, "args": args}
    text = report([Trace(rank=0, size=1, clock="", spans=[operation])], {0: 0.0}).as_text()
    assert text.startswith(
        "1 rank, no training steps. Steps are recorded by\nsmdp.torch.DistributedDataParallel"
    )
    assert "all_reduce" in text
