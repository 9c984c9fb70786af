"""Real launchers, where they are installed, say what their classes expect."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(120)

CODE = (
    "import sys; from smdp import environments; l = environments.detect();"
    "sys.stdout.write(f'<{l.source}|{l.rank}|{l.world_size}|{l.local_rank}|{l.local_size}|{l.master_addr}>\\n')"
)


def clean() -> dict[str, str]:
    drop = re.compile(
        r"(SMDP|OMPI|PMI|PMIX|SLURM|HOROVOD|MASTER|TORCHELASTIC)_|(LOCAL_)?RANK|(LOCAL_)?WORLD_SIZE"
    )
    return {name: value for name, value in os.environ.items() if not drop.match(name)}


def launches(command: list[str]) -> set[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=clean())
    assert done.returncode == 0, done.stderr
    return set(re.findall(r"<(.*)>", done.stdout))


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="needs mpirun")
def test_mpirun() -> None:
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=True).stdout
    if "Open MPI" not in version and "OpenRTE" not in version:
        pytest.skip("mpirun is not Open MPI's")
    found = launches(["mpirun", *root, "--oversubscribe", "-n", "2", sys.executable, "-c", CODE])
    assert found == {f"Open MPI|{rank}|2|{rank}|2|127.0.0.1" for rank in range(2)}


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    found = launches([*command, "--no-python", sys.executable, "-c", CODE])
    assert {launch.rpartition("|")[0] for launch in found} == {
        f"torchrun|{rank}|2|{rank}|2" for rank in range(2)
    }


def test_smdp_run() -> None:
    command = [sys.executable, "-m", "smdp", "run", "-n", "2", "--", sys.executable, "-c", CODE]
    assert launches(command) == {f"SMDP_* variables|{rank}|2|{rank}|2|127.0.0.1" for rank in range(2)}
