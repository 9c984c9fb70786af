"""torchrun starts the script: on one host, on two, and again after a rank was killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hosts import REASON, Hosts
from job import SCRIPT, TIMEOUT_S, clean, results, run

pytestmark = pytest.mark.timeout(600)

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def test_one_host(loss: str) -> None:
    done = run([*TORCHRUN, "--standalone", "--nproc-per-node", "2", SCRIPT])
    assert (done.returncode, results(done.stdout)) == (0, [f"ranks=2 {loss}"]), done.stdout


def test_torchruns_ranks_win_inside_slurm_and_beside_its_own_defaults(loss: str) -> None:
    around = {
        "SLURM_JOB_ID": "4711",
        "SLURM_PROCID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_NTASKS": "1",
        "SLURM_JOB_NODELIST": "node[1-2]",
        "PET_NPROC_PER_NODE": "2",
        "SMDP_LOG_LEVEL": "debug",
    }
    done = run([*TORCHRUN, "--standalone", SCRIPT], **around)
    assert (done.returncode, results(done.stdout)) == (0, [f"ranks=2 {loss}"]), done.stdout
    for rank in range(2):
        assert f"launcher: using torchrun: rank {rank} of 2" in done.stdout
    assert done.stdout.count("not using SLURM, which has lower precedence than torchrun: rank 0 of 1") == 2
    assert done.stdout.count("PET_NPROC_PER_NODE=2: defaults for torchrun's options") == 2


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.cluster
def test_two_hosts(loss: str, tmp_path: Path) -> None:
    words = ["--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
    command = [*TORCHRUN, *words, "--rdzv-endpoint", "node0:29400", "--rdzv-id", "17", SCRIPT]
    with Hosts(2, tmp_path) as hosts:
        both = [
            subprocess.Popen(
                hosts.on(host, command),
                env=clean(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for host in range(2)
        ]
        outputs = [one.communicate(timeout=TIMEOUT_S)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    assert results("".join(outputs)) == [f"ranks=2 {loss}"], outputs


def test_elastic_restart_after_a_rank_was_killed(loss: str, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    hold.touch()
    words = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.2"]
    command = [*TORCHRUN, *words, SCRIPT, "--stop-at", "20", "--hold", str(hold)]
    with subprocess.Popen(
        command, env=clean(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        assert job.stdout is not None
        pids: dict[str, int] = {}
        seen = ""
        while len(pids) < 2:
            line = job.stdout.readline()
            assert line, seen
            seen += line
            # Both may come on one line: ranks share the pipe.
            for rank, pid in re.findall(r"rank=(\d) pid=(\d+) step=20", line):
                pids[rank] = int(pid)
        os.kill(pids["1"], signal.SIGKILL)
        hold.unlink()
        rest = job.stdout.read()
    assert job.returncode == 0, rest
    assert len(re.findall(r"rank=\d pid=\d+ step=20", rest)) == 2, rest  # both ranks, once more
    assert str(pids["0"]) not in re.findall(r"pid=(\d+)", rest)
    assert results(rest)[-1] == f"ranks=2 {loss}", rest


def test_an_unknown_master(tmp_path: Path) -> None:
    around = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "no-such-host.invalid", "MASTER_PORT": "29500"}
    done = run([sys.executable, SCRIPT], **around)
    assert done.returncode == 1
    assert "MASTER_ADDR='no-such-host.invalid' cannot be resolved on host" in done.stdout, done.stdout


def test_a_missing_master() -> None:
    done = run([sys.executable, SCRIPT], RANK="0", WORLD_SIZE="2", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    assert done.returncode == 1
    assert "torchrun does not provide the address of rank 0 of 2; set MASTER_ADDR=" in done.stdout, (
        done.stdout
    )
