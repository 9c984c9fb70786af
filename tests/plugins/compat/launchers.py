"""The ways to start a script of another library."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
from spawn import free_port

SCRIPTS = Path(__file__).parent / "scripts"


def pairs(launchers: list[str], scripts: list[str]) -> list[Any]:
    """Each with each; those of a launcher with all scripts but one are slow."""
    return [
        pytest.param(launcher, script, marks=pytest.mark.slow if i % len(scripts) != j else [])
        for i, launcher in enumerate(launchers)
        for j, script in enumerate(scripts)
    ]


def command(launcher: str, script: Path, ranks: int) -> list[str]:
    python = sys.executable
    if launcher == "smdp run":
        return [python, "-m", "smdp", "run", "--compat", "-n", str(ranks), str(script)]
    if launcher == "torchrun":
        torchrun = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
        return [*torchrun, "--master-port", free_port(), "-m", "smdp.compat", str(script)]
    if launcher == "torchrun's variables":  # where torch is not installed
        rank = (
            f"RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1"
            f' MASTER_PORT={free_port()} "{python}" -m smdp.compat "{script}"'
        )
        return [
            "bash",
            "-c",
            f"for rank in 1 0; do {rank} & last=$!; done; wait $last; code=$?; wait; exit $code",
        ]
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not here")
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks)]
    if launcher == "mpirun":
        return [*mpirun, python, "-m", "smdp.compat", str(script)]
    return [*mpirun, "-x", "SMDP_COMPAT=1", python, str(script)]  # no word of smdp but the variable


def start(
    launcher: str, script: str, *arguments: str, ranks: int = 2, seconds: float = 110, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a script on two ranks, on the CPU; by torchrun's variables only on two."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SMDP_", "SM_"))}
    environ |= {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2", "CUDA_VISIBLE_DEVICES": "", **variables}
    with tempfile.TemporaryDirectory() as folder:  # smdp.compat makes folders for what scripts save
        return subprocess.run(
            [*command(launcher, SCRIPTS / script, ranks), *arguments],
            env=environ,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=seconds,
        )


def check(
    launcher: str, script: str, *arguments: str, ranks: int = 2, seconds: float = 110, **variables: str
) -> None:
    """It ends well, on all ranks, which are equal, and has learned something."""
    done = start(launcher, script, *arguments, ranks=ranks, seconds=seconds, **variables)
    assert done.returncode == 0, done.stderr[-6000:]
    accuracy, count = re.findall(r"accuracy ([\d.]+) on (\d) ranks", done.stdout)[0]
    assert 0.85 < float(accuracy) <= 1
    assert count == str(ranks)
