"""What `smdp trace report` makes of the steps of several models."""

from __future__ import annotations

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
    assert found.straggler_seconds == pytest.approx(communication / 2)
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
