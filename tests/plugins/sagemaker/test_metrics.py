"""The metric definitions find their figures in what real jobs print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from containers import Container

from smdp.sagemaker import METRIC_DEFINITIONS, metric_definition

FIGURES = (
    "smdp:step",
    "smdp:loss",
    "smdp:step_ms",
    "smdp:collectives_ms",
    "smdp:exposed_ms",
    "smdp:input_ms",
)
NUMPY = """
import time
import numpy as np
import smdp
world = smdp.init()
gradient = np.ones(1 << 16)
for step in range(0, 30, 10):
    for _ in range(10):
        world.all_reduce(gradient, op=smdp.AVG)
        time.sleep(0.002)
    smdp.print_step(step, loss=1 / (1 + step), top_5=0.5, tiny=1e-9, empty=float("nan"))
"""
TORCH = """
import torch, torch.distributed as dist
import smdp, smdp.torch
dist.init_process_group("smdp")
net = smdp.torch.DistributedDataParallel(torch.nn.Linear(64, 64))
for step in range(6):
    loss = net(torch.ones(2, 64)).square().mean()
    loss.backward()
    if step % 2: smdp.print_step(step, loss=loss)
dist.destroy_process_group()
"""


def found(definition: dict[str, str], text: str) -> list[float]:
    """What SageMaker would find, line by line."""
    regex = re.compile(definition["Regex"])
    return [float(match[1]) for line in text.splitlines() if (match := regex.search(line))]


def log(tmp_path: Path, script: str, **variables: str) -> str:
    done = Container(tmp_path / "ml", script, **{"SMDP_LOCAL_WORLD_SIZE": "2", **variables}).run()
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_figures_of_a_job_on_arrays(tmp_path: Path) -> None:
    text = log(tmp_path, NUMPY)
    figures = {definition["Name"]: found(definition, text) for definition in METRIC_DEFINITIONS}
    assert figures["smdp:step"] == [0, 10, 20]
    assert figures["smdp:loss"] == pytest.approx([1, 1 / 11, 1 / 21], rel=1e-5)
    assert len(figures["smdp:step_ms"]) == 2
    assert figures["smdp:exposed_ms"] == figures["smdp:input_ms"] == [], "nobody has measured them"
    for step, collectives in zip(figures["smdp:step_ms"], figures["smdp:collectives_ms"], strict=True):
        assert step > 2 and 0 < collectives < step  # the sleep counts for the first only
    assert figures["smdp:stalled_seconds"] == []
    assert found(metric_definition("top_5"), text) == [0.5] * 3
    assert found(metric_definition("tiny", "validation:tiny"), text) == [1e-9] * 3
    assert len(found(metric_definition("empty"), text)) == 3
    assert found(metric_definition("5"), text) == [], "a part of a name is another figure"


def test_figures_of_a_job_on_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = log(tmp_path, TORCH)
    figures = {definition["Name"]: found(definition, text) for definition in METRIC_DEFINITIONS}
    assert figures["smdp:step"] == [1, 3, 5]
    assert len(figures["smdp:loss"]) == 3
    assert "Warning" not in text
    assert len(figures["smdp:exposed_ms"]) == 2
    assert all(value > 0 for value in figures["smdp:collectives_ms"])


def test_a_stalled_operation_is_found(tmp_path: Path) -> None:
    script = (
        "import time, numpy as np, smdp\nworld = smdp.init()\n"
        "if world.rank == 1: time.sleep(4)\nworld.all_reduce(np.ones(4))"
    )
    text = log(tmp_path, script, SMDP_STALL_TIME="1")
    stalls = found(METRIC_DEFINITIONS[-1], text)
    assert METRIC_DEFINITIONS[-1]["Name"] == "smdp:stalled_seconds"
    assert stalls and 1 <= min(stalls) <= max(stalls) <= 6


def test_a_name_says_what_it_is() -> None:
    assert [definition["Name"] for definition in METRIC_DEFINITIONS][:6] == list(FIGURES)
    assert all(set(definition) == {"Name", "Regex"} for definition in METRIC_DEFINITIONS)
    assert metric_definition("accuracy")["Name"] == "smdp:accuracy"


def test_print_step_refuses_what_it_cannot_say(tmp_path: Path) -> None:
    script = """
import smdp
smdp.print_step(5, loss=1)
for step, figures in (
    (6, {"step_ms": 1}), ("7", {}), (6, {"loss": None}), (6, {"loss": 0.5})
):
    try:
        smdp.print_step(step, **figures)
    except (ValueError, TypeError) as error:
        print("refused:", error)
"""
    lines = log(tmp_path, script, SMDP_LOCAL_WORLD_SIZE="1").splitlines()
    assert "[rank 0] refused: [smdp] print_step() uses the name step_ms itself; choose another name" in lines
    assert "[rank 0] refused: [smdp] step = '7' is not valid; allowed: an integer" in lines
    assert "[rank 0] refused: [smdp] print_step() got loss=None, which is not a number" in lines
    assert sum(line.startswith("[rank 0] smdp_step=6 loss=0.5 step_ms=") for line in lines) == 1
