"""What SMDP_TRACE shows of a pipeline's steps: the plan beside what happened."""

from __future__ import annotations

import json
from pathlib import Path

from torch_spawn import run

from smdp.cli import trace

STEPS = 4


def train() -> None:
    from pipeline_models import Language, batches, made, train_pipeline

    import smdp.torch

    steps = batches(STEPS)
    pipe = smdp.torch.pipeline(made(Language), stages=2, example_inputs=steps[0], schedule="zb_1p")
    train_pipeline(pipe, steps)
    assert len(pipe.timeline) == len(pipe.schedule.lower().rows[pipe.layout.stage_rank])
    assert all(action.start <= action.end and action.waited >= 0 for action in pipe.timeline)


def test_planned_stands_beside_measured(tmp_path: Path) -> None:
    run(train, env={"SMDP_TRACE": str(tmp_path)})
    report = json.loads(trace.report_text(tmp_path, as_json=True))["pipeline"]
    assert report["steps"] == STEPS - 1  # the first one has learnt the plan
    assert report["planned_seconds"] > 0
    for rank in range(2):
        parts = [report[f"{kind}_seconds"][rank] for kind in ("computing", "waiting", "transfer")]
        assert report["computing_seconds"][rank] > 0
        assert sum(parts) < 3 * report["measured_seconds"]
    assert "planned step" in trace.report_text(tmp_path)
    events = json.loads(trace.merge(tmp_path).read_text())
    for kind in ("pipeline", "planned"):
        names = [event["name"] for event in events if event.get("cat") == kind and event["pid"] == 0]
        computations = [name for name in names if name in {f"0{k}{m}" for k in "FIW" for m in range(8)}]
        assert len(computations) == 24 * (STEPS - 1)
