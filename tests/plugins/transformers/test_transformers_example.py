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
VARIABLES = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}


def command(folder: Path, steps: int) -> list[str]:
    run = [sys.executable, "-m", "smdp", "run", "-n", "2", str(EXAMPLE)]
    return [*run, "--output", str(folder), "--steps", str(steps), "--save-steps", "10"]


def logged(output: str) -> list[float]:
    return [float(loss) for loss in re.findall(r"'loss': '([\d.]+)'", output)]


def run(words: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, capture_output=True, text=True, check=True, timeout=280, env=VARIABLES)


def test_two_ranks(tmp_path: Path) -> None:
    """Goes on from the newest checkpoint that was written to its end."""
    first = logged(run(command(tmp_path, 10)).stdout)
    assert len(first) == 1 and 4 < first[0] < 5.5
    (tmp_path / "checkpoint-15").mkdir()
    (tmp_path / "checkpoint-15" / "model.safetensors").write_bytes(b"half")
    done = run(command(tmp_path, 20))
    second = logged(done.stdout)
    assert len(second) == 1 and second[0] < first[0] - 0.5
    assert "perplexity" in done.stdout


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
def test_killed_and_resumed(tmp_path: Path) -> None:
    whole = run(command(tmp_path / "whole", 60))
    losses = logged(whole.stdout)
    # As the page says: from 5.5 at the first step, which is in the first mean of ten, to about 2.6.
    assert len(losses) == 6 and losses[0] > 4 and losses[-1] < 2.7
    bars = [line for line in re.split(r"[\r\n]", whole.stdout + whole.stderr) if "it/s]" in line]
    assert bars and not [line for line in bars if "[rank 1]" in line], "every rank has a progress bar"
    perplexity = re.findall(r"perplexity ([\d.]+)", whole.stdout)
    assert float(perplexity[0]) < 20

    saved = tmp_path / "killed" / "checkpoint-10" / "trainer_state.json"
    with subprocess.Popen(
        command(tmp_path / "killed", 60), stdout=subprocess.DEVNULL, env=VARIABLES, start_new_session=True
    ) as killed:
        deadline = time.monotonic() + 60
        while not saved.exists() and time.monotonic() < deadline:
            time.sleep(0.05)  # no event tells that another program has written a file
        os.killpg(killed.pid, signal.SIGKILL)
    assert saved.exists()
    again = run(command(tmp_path / "killed", 60))
    assert len(logged(again.stdout)) < 6, "it began anew"
    assert logged(again.stdout)[-1] == losses[-1]
    assert re.findall(r"perplexity ([\d.]+)", again.stdout) == perplexity


@pytest.mark.slow
def test_in_stages(tmp_path: Path) -> None:
    split = [*command(tmp_path, 10), "--stages", "2"]
    done = run(split)
    assert logged(done.stdout)[0] < 5.5 and "perplexity" in done.stdout
    names = {path.name for path in (tmp_path / "checkpoint-10").iterdir()}
    assert {"model-00002-of-00002.safetensors", "model_parallel"} <= names


def test_one_process(tmp_path: Path) -> None:
    alone = [sys.executable, str(EXAMPLE), "--output", str(tmp_path), "--steps", "10"]
    done = run(alone)
    assert logged(done.stdout) and "perplexity" in done.stdout
