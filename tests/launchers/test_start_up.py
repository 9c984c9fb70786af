"""What goes wrong around a start: clocks apart, two jobs on one port, ranks that nobody started."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hosts import REASON, Hosts
from job import clean

from smdp.cli.trace import alignment, files

pytestmark = pytest.mark.timeout(300)

# Without a framework: what is looked at here belongs to smdp itself.
_SUM = """
import os, sys, time
import numpy as np, smdp
world = smdp.init()
value = np.ones(1000, np.float32)
for _ in range(20):
    world.all_reduce(value, op=smdp.AVG)
while os.path.exists(sys.argv[1]):
    time.sleep(0.05)
world.all_reduce(value)
print(f"rank {world.rank} of {world.size}: {value[0]:g} at {int(time.time())}", flush=True)
smdp.shutdown()
"""
_PIPES: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Popen with pipes; what a failed test leaves is killed."""
    started: list[subprocess.Popen[str]] = []

    def begin(command: list[str], env: dict[str, str]) -> subprocess.Popen[str]:
        started.append(subprocess.Popen(command, env=env, **_PIPES))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    script = tmp_path / "sum.py"
    script.write_text(_SUM)
    return [sys.executable, "-u", str(script)]


def ranks(port: int, rank: int, **more: str) -> dict[str, str]:
    known = {"SMDP_RANK": rank, "SMDP_WORLD_SIZE": 2, "SMDP_LOCAL_WORLD_SIZE": 2, "SMDP_MASTER_PORT": port}
    return clean(**{**{name: str(value) for name, value in known.items()}, **more})


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(REASON is not None, reason=str(REASON))
@pytest.mark.cluster
def test_clocks_ten_minutes_apart(start: Start, program: list[str], tmp_path: Path) -> None:
    """Node 1 has another boot, another time of day and another monotonic clock."""
    boot = tmp_path / "boot_id"
    boot.write_text("11111111-2222-3333-4444-555555555555\n")
    command = " ".join([*program, str(tmp_path / "none")])
    late = (
        f"mount --bind {boot} /proc/sys/kernel/random/boot_id && "
        f"exec faketime -f +10m env FAKETIME_DONT_FAKE_MONOTONIC=1 {command}"
    )
    words = ["unshare", "--mount", "--time", "--fork", "--monotonic", "600", "bash", "-c"]
    around = {
        "SMDP_TRACE": str(tmp_path / "traces"),
        "SMDP_MASTER_ADDR": "node0",
        "SMDP_LOCAL_WORLD_SIZE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    with Hosts(2, tmp_path) as hosts:
        both = [
            start(
                hosts.on(host, [*program, str(tmp_path / "none")] if host == 0 else [*words, late]),
                env=ranks(7000, host, **around),
            )
            for host in range(2)
        ]
        outputs = [one.communicate(timeout=120)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    times = [int(output.split(" at ")[1].split()[0]) for output in outputs]
    assert 500 < times[1] - times[0] < 700, outputs  # the time of day was apart
    assert "rank 1 of 2: 2 at" in outputs[1]

    traces = files.read(tmp_path / "traces")
    begins = [trace.spans[0]["ts"] for trace in traces]
    assert begins[1] - begins[0] > 500e6  # and so was the clock of the traces
    offsets = alignment.offsets(traces)
    assert offsets[0] == 0
    assert abs(offsets[1] + 600e6) < 1e6, offsets


def wait_for_listener(port: int) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.01)
    raise TimeoutError(f"nobody listens at port {port}")


def test_two_jobs_on_one_port(start: Start, program: list[str], tmp_path: Path) -> None:
    """By hand, with a secret each: the second job is refused at once, the first does not notice."""
    hold = tmp_path / "hold"
    hold.touch()
    port = free_port()
    first = [start([*program, str(hold)], env=ranks(port, rank, SMDP_SECRET="a")) for rank in range(2)]
    try:
        wait_for_listener(port)
        second = [start([*program, str(hold)], env=ranks(port, rank, SMDP_SECRET="b")) for rank in range(2)]
        outputs = [one.communicate(timeout=60)[0] for one in second]
    finally:
        hold.unlink()
    assert [one.returncode for one in second] == [1, 1], outputs
    assert f"port {port}" in outputs[0] and "SMDP_MASTER_PORT" in outputs[0], outputs
    assert "another secret" in outputs[1] and f"port {port}" in outputs[1], outputs
    ends = [one.communicate(timeout=60)[0] for one in first]
    assert [one.returncode for one in first] == [0, 0], ends


def test_another_jobs_rank_is_refused_by_the_jobs_name(
    start: Start, program: list[str], tmp_path: Path
) -> None:
    """No secrets, but launchers that name their jobs: here two jobs of SLURM with one MASTER_PORT."""

    def task(job: int, rank: int) -> subprocess.Popen[str]:
        known = {
            "SLURM_JOB_ID": job,
            "SLURM_STEP_ID": 0,
            "SLURM_STEP_NUM_TASKS": 2,
            "SLURM_NTASKS": 2,
            "SLURM_PROCID": rank,
            "SMDP_MASTER_ADDR": "127.0.0.1",
            "SMDP_MASTER_PORT": port,
        }
        around = {name: str(value) for name, value in known.items()}
        return start([*program, str(tmp_path / "none")], env=clean(**around))

    port = free_port()
    leader = task(17, 0)
    stranger = task(18, 1)
    output = stranger.communicate(timeout=60)[0]
    assert stranger.returncode == 1, output
    assert (
        f"another job or program, not rank 0 of SLURM job 18.0, is listening at 127.0.0.1, port {port}"
        in output
    )
    follower = task(17, 1)
    ends = [one.communicate(timeout=60)[0] for one in (leader, follower)]
    assert [leader.returncode, follower.returncode] == [0, 0], ends


def test_smdp_run_draws_ports_of_its_own(start: Start, program: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "smdp", "run", "-n", "2", *program[2:], str(tmp_path / "none")]
    around = clean(MASTER_PORT="29500", SMDP_MASTER_PORT="29501")  # of somebody else
    both = [start(command, env=around) for _ in range(2)]
    outputs = [one.communicate(timeout=100)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs


def test_smdp_run_says_which_port_is_taken(program: list[str], tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        command = [sys.executable, "-m", "smdp", "run", "--master-port", str(port), *program[2:], "none"]
        done = subprocess.run(command, env=clean(), timeout=60, check=False, **_PIPES)
    assert done.returncode == 2
    assert f"--master-port='{port}'" in done.stdout or f"--master-port={port}" in done.stdout, done.stdout


def test_a_container_without_ranks_trains_alone(program: list[str], tmp_path: Path) -> None:
    """As Kubeflow leaves it: torchrun's defaults are there, and nobody calls torchrun."""
    around = {"PET_NNODES": "2", "PET_NPROC_PER_NODE": "1", "PET_MASTER_ADDR": "node-0"}
    done = subprocess.run(
        [*program, str(tmp_path / "none")], env=clean(**around), timeout=60, check=False, **_PIPES
    )
    assert done.returncode == 0 and "rank 0 of 1" in done.stdout, done.stdout
    assert done.stdout.count("trains alone") == 1
    assert "PET_NNODES=2 is an option of torchrun; start the script with torchrun" in done.stdout
