"""The example, killed in the middle and started again; the library that every TensorFlow shares."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest

import smdp

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "tensorflow_digits.py"
VARIABLES = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "PYTHONUNBUFFERED": "1"}


LAUNCHERS = {
    "smdp run": [sys.executable, "-m", "smdp", "run", "-n", "2"],
    "mpirun": ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2", sys.executable],
}


@pytest.mark.slow  # tox runs it by `smdp run`
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs Open MPI")
def test_whole_by_mpirun() -> None:
    ended = subprocess.run(
        [*LAUNCHERS["mpirun"], str(EXAMPLE)],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env=VARIABLES,
    )
    assert ended.stdout.count("20 losses within") == (2 if keras.__version__ >= "3" else 1)


def command(folder: Path, launcher: str = "smdp run") -> list[str]:
    return [*LAUNCHERS[launcher], str(EXAMPLE), "--epochs", "6", "--checkpoints", str(folder)]


def last_losses(output: str) -> list[str]:
    return re.findall(r"last losses: \[(.*)\]", output)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["smdp run", "mpirun"])
def test_killed_and_resumed(launcher: str, tmp_path: Path) -> None:
    if shutil.which(LAUNCHERS[launcher][0]) is None:
        pytest.skip(f"needs {launcher}")
    whole = subprocess.run(
        command(tmp_path / "whole"), capture_output=True, text=True, check=True, timeout=100, env=VARIABLES
    )
    with subprocess.Popen(
        command(tmp_path / "killed"), stdout=subprocess.PIPE, text=True, env=VARIABLES, start_new_session=True
    ) as killed:
        assert killed.stdout is not None
        for line in killed.stdout:
            if "saved after 44 batches" in line:
                break
        os.killpg(killed.pid, signal.SIGKILL)
    again = subprocess.run(
        command(tmp_path / "killed", launcher),
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        env=VARIABLES,
    )
    assert "saved after 22 batches" not in again.stdout, "it began anew"
    assert last_losses(again.stdout) == last_losses(whole.stdout) != []


def test_library_needs_no_tensorflow() -> None:
    """Of TensorFlow it takes C functions by name only, so one file serves every release."""
    library = Path(smdp.__file__).parent / "tensorflow" / "libsmdp_tensorflow.so"
    dynamic = subprocess.run(["readelf", "-d", library], capture_output=True, text=True, check=True).stdout
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    allowed = {
        "libsmdp.so",
        "libstdc++.so.6",
        "libm.so.6",
        "libgcc_s.so.1",
        "libc.so.6",
        "ld-linux-x86-64.so.2",
    }
    assert needed <= allowed
    symbols = subprocess.run(
        ["nm", "-D", "-C", "--undefined-only", library], capture_output=True, text=True, check=True
    )
    foreign = [line.split()[-1] for line in symbols.stdout.splitlines() if "tensorflow" in line.lower()]
    assert foreign == []
    # No versions of symbols either, and no release that it was built with.
    assert [line for line in symbols.stdout.splitlines() if " TF_" in line and "@" in line] == []
    assert re.findall(rb"TF_[A-Z_]*VERSION|tensorflow[ -]?2\.\d+", library.read_bytes()) == []
    assert "TF_NewAsyncKernelBuilder" in symbols.stdout
