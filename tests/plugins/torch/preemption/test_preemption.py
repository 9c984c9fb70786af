"""Training by DDP on machines that are taken away, under `smdp run` and torchrun."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

TRAIN = """
import os, sys, time
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import smdp
import smdp.torch

folder, steps, pause, workers, backend = sys.argv[1:]
torch.set_num_threads(1)
dist.init_process_group(backend)
if backend != "smdp":
    beside = dist.new_group(backend="smdp")
rank, size = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
wrap = smdp.torch.DistributedDataParallel if backend == "smdp" else nn.parallel.DistributedDataParallel
ddp = wrap(net)
optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
sampler = DistributedSampler(data, seed=3)
loader = DataLoader(
    data,
    batch_size=4,
    sampler=sampler,
    num_workers=int(workers),
    multiprocessing_context=smdp.torch.spared_workers() if int(workers) else None,
)
file, step = os.path.join(folder, "state.pt"), 0
if os.path.exists(file):
    state = torch.load(file)
    step = state["step"]
    net.load_state_dict(state["net"])
    optimizer.load_state_dict(state["optimizer"])

def save():
    if rank == 0:
        time.sleep(1)
        state = {"step": step, "net": net.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, file + ".new")
        os.replace(file + ".new", file)
    print(f"rank {rank} saved at {step}\\n", end="", flush=True)

print(f"rank {rank} pid {os.getpid()}\\n", end="", flush=True)
while step < int(steps):
    epoch, done = divmod(step, len(loader))
    sampler.set_epoch(epoch)
    for index, (x, y) in enumerate(loader):
        if index < done or step == int(steps):
            continue
        optimizer.zero_grad()
        nn.functional.mse_loss(ddp(x), y).backward()
        optimizer.step()
        step += 1
        time.sleep(float(pause))
        smdp.exit_if_preempted(save)
        if step == 1 or step % 20 == 0:
            print(f"rank {rank} step {step}\\n", end="", flush=True)
parameters = torch.cat([p.detach().flatten() for p in net.parameters()])
print(f"rank {rank} result {parameters.numpy().tobytes().hex()[:4000]}\\n", end="", flush=True)
dist.destroy_process_group()
"""

LAUNCHERS = {
    "smdp run": ["-m", "smdp", "run", "-n"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"],
}


class Job:
    """A launcher and its ranks."""

    def __init__(self, command: list[str]) -> None:
        self.output = ""
        self.process = subprocess.Popen(
            [sys.executable, *command],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, count: int, pattern: str) -> list[str]:
        assert self.process.stdout is not None
        while len(found := re.findall(pattern, self.output)) < count:
            line = self.process.stdout.readline()
            assert line, self.output
            self.output += line
        return found

    def finish(self) -> int:
        self.output += self.process.communicate(timeout=400)[0]
        return self.process.returncode


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    jobs: list[Job] = []
    script = tmp_path / "train.py"
    script.write_text(TRAIN)

    def begin(
        launcher: str,
        size: int,
        *options: str,
        steps: int = 60,
        pause: float = 0.0,
        workers: int = 0,
        backend: str = "smdp",
    ) -> Job:
        how = [*LAUNCHERS[launcher][:-1], *options, LAUNCHERS[launcher][-1], str(size)]
        what = (tmp_path, steps, pause, workers, backend)
        jobs.append(Job([*how, str(script), *map(str, what)]))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.terminate()
        job.process.communicate()


def results(job: Job, size: int) -> set[str]:
    assert job.finish() == 0, job.output
    found = re.findall(r"result (\w+)", job.output)
    assert len(found) == size, job.output
    return set(found)


_uninterrupted: dict[int, set[str]] = {}


def uninterrupted(size: int, start: Start) -> set[str]:
    """What training without a signal ends with; the same on all ranks."""
    if size not in _uninterrupted:
        _uninterrupted[size] = results(start("smdp run", size), size)
    assert len(_uninterrupted[size]) == 1
    return _uninterrupted[size]


def stopped_at(job: Job, size: int) -> str:
    found = re.findall(r"rank \d+ saved at (\d+)", job.output)
    assert len(found) == size and len(set(found)) == 1, job.output
    return found[0]


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("launcher", "size"),
    [
        ("smdp run", 2),
        pytest.param("smdp run", 4, marks=pytest.mark.slow),
        pytest.param("torchrun", 2, marks=pytest.mark.slow),
    ],
)
def test_sigterm_to_one_rank(launcher: str, size: int, start: Start) -> None:
    whole = uninterrupted(size, start)
    job = start(launcher, size, pause=0.02)
    job.read_until(size, r"rank \d+ step 1\n")
    pids = dict(re.findall(r"rank (\d+) pid (\d+)", job.output))
    time.sleep(random.uniform(0, 1))
    os.kill(int(pids[str(random.randrange(size))]), signal.SIGTERM)
    code = job.finish()
    assert 0 < int(stopped_at(job, size)) < 60
    if launcher == "torchrun":  # a failure of the workers, all of which have left by themselves
        assert code == 1
        assert set(re.findall(r"exitcode *: (\d+)", job.output)) == {"75"}, job.output
    else:
        assert code == 75
        assert "requested a restart: exit code 75" in job.output and "failed" not in job.output
    assert results(start(launcher, size), size) == whole


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_torchrun_starts_again_by_itself(start: Start) -> None:
    whole = uninterrupted(2, start)
    job = start("torchrun", 2, "--max-restarts=1", pause=0.02)
    job.read_until(2, r"rank \d+ step 1\n")
    os.kill(int(re.findall(r"rank 1 pid (\d+)", job.output)[0]), signal.SIGTERM)
    assert results(job, 2) == whole
    assert 0 < int(stopped_at(job, 2)) < 60


@pytest.mark.timeout(600)
@pytest.mark.parametrize("launcher", [pytest.param("torchrun", marks=pytest.mark.slow), "smdp run"])
def test_sigterm_to_the_launcher_while_workers_load_data(launcher: str, start: Start) -> None:
    # torchrun sends it to the workers of the DataLoader, too.
    job = start(launcher, 2, pause=0.05, workers=2)
    job.read_until(2, r"rank \d+ step 1\n")
    time.sleep(random.uniform(0, 1))
    job.process.terminate()
    code = job.finish()
    stopped_at(job, 2)
    assert "DataLoader worker" not in job.output
    if launcher == "smdp run":
        assert code == 75


@pytest.mark.timeout(600)
def test_beside_a_default_group_of_another_backend(start: Start) -> None:
    job = start("torchrun", 2, pause=0.02, backend="gloo")
    job.read_until(2, r"rank \d+ step 1\n")
    os.kill(int(re.findall(r"rank 0 pid (\d+)", job.output)[0]), signal.SIGTERM)
    job.finish()
    stopped_at(job, 2)
