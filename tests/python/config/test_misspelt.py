"""Variables that mean nothing are told once per job."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from smdp._misspelt import untold

JOB = """
import subprocess, sys
import smdp
smdp.init().barrier()
alone = "import os, smdp; smdp.init(rank=0, world_size=1)"
sys.stderr.write(subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True).stderr)
"""
TOLD = "SMDP_TIMEOT is not a variable of smdp; did you mean SMDP_TIMEOUT?"


def test_each_is_told_once() -> None:
    environ = {"SMDP_TIMEOT": "3", "SMDP_TEST_PORT": "1", "SMDP_RANK": "0", "SMDP_ALGORITM": ""}
    assert untold(environ) == [TOLD]
    assert untold(environ) == []
    environ["SMDP_XYZZY"] = "1"
    assert untold(environ) == ["SMDP_XYZZY is not a variable of smdp"]


def clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if "SMDP_" not in name}


@pytest.mark.timeout(60)
def test_smdp_run_tells_and_ranks_do_not(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = subprocess.run(
        [sys.executable, "-m", "smdp", "run", "-n", "2", str(script)],
        env={**clean(), "SMDP_TIMEOT": "3"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert [line for line in done.stderr.splitlines() if "SMDP_TIMEOT" in line] == [f"smdp: {TOLD}"]


@pytest.mark.timeout(60)
def test_under_other_launchers_rank_0_tells() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {**clean(), "SMDP_TIMEOT": "3", "SMDP_MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1"}
    common |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", JOB],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [rank.communicate(timeout=50)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], errors
    assert [error.count("SMDP_TIMEOT ") for error in errors] == [1, 0], errors
