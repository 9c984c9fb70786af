"""What docs/examples/cpu_speed.py measures on this host is what `smdp plan` takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[4] / "docs" / "examples"
SHAPE = ["--width=64", "--heads=2", "--sequence=32", "--rows=2", "--tensor=2"]


@pytest.mark.slow
def test_a_plan_takes_what_is_measured() -> None:
    def smdp(*arguments: object) -> str:
        command = [sys.executable, "-m", "smdp", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout

    found = smdp("run", "-n", 2, EXAMPLES / "cpu_speed.py", *SHAPE).split()
    measured = found[found.index("--device") :]
    config = EXAMPLES / "configs" / "gpt2_10b.json"
    machine = ["--ranks-per-host", 2, "--device-memory", "400GB", *measured]
    plan = smdp("plan", config, *machine, "--batch", 8, "--sequence", 512, "--precision", "fp32", "--json")
    cluster = json.loads(plan)["cluster"]
    # Starting some sixty operators takes longer than a microsecond each, and they are not a second's work.
    assert 50e-6 < cluster["layer_overhead"] < 1
    assert 0 <= cluster["latency"] < 1 and cluster["flops"] > 0 and cluster["memory_bandwidth"] > 0
