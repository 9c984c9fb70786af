"""`smdp plan` as a program."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[3] / "docs"
CONFIG = DOCS / "examples" / "configs" / "gpt2_10b.json"


def smdp(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "smdp", "plan", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_table() -> None:
    done = smdp(CONFIG, "--hosts", 16, "--batch", 512, "--sequence", 512)
    assert done.returncode == 0, done.stderr
    assert "Layouts that fit, by step time" in done.stdout
    assert "Recommended: pipeline " in done.stdout
    assert "Memory of the recommended layout, GB of 32.0 per rank" in done.stdout
    assert "…" not in done.stdout  # no column is cut


def test_json_and_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    times = ["--layer-overhead-us", 250, "--latency-us", 20]
    done = smdp(CONFIG, "--hosts", 16, "--batch", 512, "--sequence", 512, *times, "--json", "--trace", trace)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["cluster"]["layer_overhead"], result["cluster"]["latency"]) == (250e-6, 20e-6)
    assert result["fitting"] + result["not_run"] + result["rejected"] > 10_000
    assert len(result["options"]) == 10
    best = result["options"][0]
    assert best["peak_bytes"] == pytest.approx(max(stage["total"] for stage in best["stages"]))
    assert best["peak_bytes"] <= 32e9
    events = json.loads(trace.read_text(encoding="utf-8"))
    assert events["traceEvents"] if isinstance(events, dict) else events


def test_explain_names_every_rejected_one() -> None:
    small = smdp(CONFIG, "--hosts", 1, "--batch", 16, "--sequence", 512, "--json", "--explain")
    result = json.loads(small.stdout)
    assert len(result["why_rejected"]) == result["rejected"] > 0
    text = smdp(CONFIG, "--hosts", 1, "--batch", 16, "--sequence", 512, "--explain")
    assert sum(line.startswith("rejected: ") for line in text.stdout.splitlines()) == result["rejected"]


def test_emitted_python_is_a_script(tmp_path: Path) -> None:
    """A host of two cores, by what was measured on it; nothing else is printed."""
    speed = ["--device", "cpu", "--gflops", 50, "--memory-bandwidth", "8GBps", "--cores-per-host", 2]
    options = ["--ranks-per-host", 4, "--batch", 16, "--sequence", 512, "--precision", "fp32,fp16", *speed]
    small = ["--device-memory", "64GB", "--offload", "disk:/scratch"]
    for form in ("python", "trainer"):
        done = smdp(CONFIG, *options, *small, "--emit", form)
        assert done.returncode == 0, done.stderr
        ast.parse(done.stdout)
        assert done.stdout.startswith("# smdp run -n 4 train.py")
    best = json.loads(smdp(CONFIG, *options, *small, "--json", "--explain").stdout)
    assert best["options"][0]["python"] == smdp(CONFIG, *options, *small, "--emit", "python").stdout
    assert len(best["why_not_run"]) == best["not_run"] > 0
    none = smdp(CONFIG, *options, "--device-memory", "1GB", "--emit", "python")
    assert none.returncode == 1 and "Nothing fits" in none.stdout


def test_nothing_fits(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    options = ["--batch", 512, "--sequence", 512, "--device-memory", "8GB", "--trace", trace]
    done = smdp(CONFIG, "--hosts", 1, *options)
    assert done.returncode == 1
    assert "no layout fits, so" in done.stderr and not trace.exists()
    assert "Nothing fits 6.4 GB" in done.stdout and "try " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hosts", 0], "hosts = 0 is not valid"),
        (["--link", "fast"], "--link='fast' is not valid; allowed: a rate above 0"),
        (["--device-memory", "40"], "--device-memory='40' is not valid; allowed: a size above 0, e.g. 40GB"),
        (["--interconnect", "0GBps"], "--interconnect='0GBps' is not valid; allowed: a rate above 0"),
        (
            ["--interconnect", "600GB"],
            "--interconnect='600GB' is not valid; allowed: a rate above 0, e.g. 600GBps",
        ),
        (
            ["--device-memory", "40GBps"],
            "--device-memory='40GBps' is not valid; allowed: a size above 0, e.g. 40GB",
        ),
        (["--tflops", "nan"], "--tflops='nan' is not valid; allowed: a number above 0"),
        (["--tflops", 0], "--tflops='0.0' is not valid"),
        (["--device", "tpu"], "--device='tpu' is not valid; allowed: gpu, cpu"),
        (["--device", "cpu"], "--gflops='None' is not valid; allowed: a number above 0, with --device cpu"),
        (["--cores-per-host", 4], "--cores-per-host='4.0' is not valid; allowed: only with --device cpu"),
        (["--layer-overhead-us", -1], "--layer-overhead-us='-1.0' is not valid; allowed: a number from 0"),
        (["--latency-us", "inf"], "--latency-us='inf' is not valid; allowed: a number from 0"),
        (["--emit", "rust"], "--emit='rust' is not valid; allowed: python, trainer"),
        (["--offload", "disk:scratch"], "offload = 'disk:scratch' is not valid; allowed: 'host', or 'disk:'"),
        (["--precision", "fp7"], "precision = 'fp7' is not valid"),
        (["--trace", "/nowhere/at/all.json"], "No such file or directory"),
    ],
)
def test_wrong_arguments(arguments: list[object], message: str) -> None:
    done = smdp(CONFIG, "--batch", 64, "--sequence", 512, *arguments)
    assert done.returncode == 2 and not done.stdout
    assert message in done.stderr and "Traceback" not in done.stderr


def test_a_config_that_lacks_a_field(tmp_path: Path) -> None:
    values = json.loads(CONFIG.read_text(encoding="utf-8"))
    del values["n_layer"]
    (tmp_path / "config.json").write_text(json.dumps(values), encoding="utf-8")
    done = smdp(tmp_path / "config.json", "--batch", 64, "--sequence", 512)
    assert done.returncode == 2 and "n_layer" in done.stderr


def test_reference_script() -> None:
    script = DOCS / "examples" / "plan_reference_configs.sh"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", str(script)], capture_output=True, text=True, timeout=60, env={**os.environ, "PATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Recommended: ") == 3
