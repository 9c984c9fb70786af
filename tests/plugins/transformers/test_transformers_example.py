"""The example: its loss falls, and killed in the middle it goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(600)

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "transformers_text.py"
VARIABLES = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def command(folder: Path, steps: int) -> list[str]:
    run = [sys.executable, "-m", "smdp", "run", "-n", "2", str(EXAMPLE)]
    return [*run, "--output", str(folder), "--steps", str(steps), "--save-steps", "10"]


def logged(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", output)]


def perplexity(output: str) -> float:
    (found,) = re.findall(r"perplexity ([\d.]+)", output)
    return float(found)


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=280, env=VARIABLES)


def kill(words: list[str], saved: Path) -> None:
    """End all of a job by SIGKILL once that checkpoint is there."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=VARIABLES, start_new_session=True) as job:
        deadline = time.monotonic() + 120
        while not (saved / "trainer_state.json").exists() and time.monotonic() < deadline:
            time.sleep(0.05)  # no event tells that another program has written a file
        is_running = job.poll() is None
        os.killpg(job.pid, signal.SIGKILL)
    assert is_running, "it ended first"


@pytest.mark.slow
def test_killed_and_resumed(tmp_path: Path) -> None:
    """Goes on from the newest checkpoint that was written to its end, to the same figures."""
    whole = run(command(tmp_path / "whole", 20)).stdout
    first, second = logged(whole)
    assert (first, second) == pytest.approx((4.5, 3.4), abs=0.1)  # as the page says
    kill(command(tmp_path / "killed", 20), tmp_path / "killed" / "checkpoint-10")
    half = tmp_path / "killed" / "checkpoint-15"
    half.mkdir()
    (half / "model.safetensors").write_bytes(b"half")
    again = run(command(tmp_path / "killed", 20)).stdout
    assert logged(again) == [second]
    assert perplexity(again) == perplexity(whole)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not here")
def test_mpirun(tmp_path: Path) -> None:
    """Ranks that only Open MPI's variables tell."""
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable]
    done = run([*mpirun, str(EXAMPLE), "--output", str(tmp_path), "--steps", "10"])
    losses = logged(done.stdout)
    assert len(losses) == 1 and 4 < losses[0] < 5.5
    assert done.stdout.count("perplexity") == 1


@pytest.mark.slow
def test_learns(tmp_path: Path) -> None:
    done = run(command(tmp_path, 60))
    losses = logged(done.stdout)
    # As the page says.
    assert len(losses) == 6
    assert (losses[0], losses[1], losses[-1]) == pytest.approx((4.5, 3.4, 2.6), abs=0.1)
    bars = [line for line in re.split(r"[\r\n]", done.stdout + done.stderr) if "it/s]" in line]
    assert bars and not [line for line in bars if "[rank 1]" in line], "every rank has a progress bar"
    assert perplexity(done.stdout) < 20


@pytest.mark.slow
def test_in_stages(tmp_path: Path) -> None:
    split = [*command(tmp_path, 10), "--stages", "2"]
    done = run(split)
    assert logged(done.stdout)[0] < 5.5 and "perplexity" in done.stdout
    names = {path.name for path in (tmp_path / "checkpoint-10").iterdir()}
    assert {"model-00002-of-00002.safetensors", "model_parallel"} <= names


def test_one_process(tmp_path: Path) -> None:
    done = run([sys.executable, str(EXAMPLE), "--output", str(tmp_path), "--steps", "5"])
    assert perplexity(done.stdout) < 80  # 256 before training
