"""Training under torchrun on several hosts: one model everywhere, and an error where a host goes away."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from network import Cluster, why_not

REASON = why_not()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

TRAIN = """
import sys, time
import torch
import torch.distributed as dist
from torch import nn

import smdp.torch

torch.set_num_threads(1)
wire, steps = sys.argv[1], int(sys.argv[2])
# float64 shows the order of every sum; wire types are for float32.
dtype, near = (torch.float64, 1e-9) if wire == "none" else (torch.float32, 1e-3)
dist.init_process_group("smdp")
rank, size = dist.get_rank(), dist.get_world_size()

def model():
    torch.manual_seed(5)
    layers = [nn.Linear(32, 700), nn.Tanh(), nn.Linear(700, 700), nn.Tanh(), nn.Linear(700, 8)]
    return nn.Sequential(*layers).to(dtype)

def train(net, first, rows, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(4 * size, 32, generator=generator).to(dtype)[first : first + rows]
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step}", flush=True)
    return torch.cat([parameter.detach().flatten() for parameter in net.parameters()])

ddp = smdp.torch.DistributedDataParallel(model(), compression=wire, topk_ratio=0.5)
ours = train(ddp, 4 * rank, 4, steps)
alone = train(model(), 0, 4 * size, steps)
assert torch.allclose(ours, alone, rtol=0, atol=near), (ours - alone).abs().max()
first = ours.clone()
dist.broadcast(first, 0)
assert torch.equal(first, ours)
print(f"rank {rank} of {size} is right", flush=True)
dist.destroy_process_group()
"""


def torchrun(
    cluster: Cluster, ranks_per_host: int, script: Path, *arguments: str, **variables: str
) -> list[subprocess.Popen[Any]]:
    """Start a launcher on every host, with these environment variables."""
    return [
        cluster.start(
            host,
            [
                *(sys.executable, "-m", "torch.distributed.run", f"--nnodes={cluster.hosts}"),
                *(f"--nproc-per-node={ranks_per_host}", f"--node-rank={host}", "--master-port=29400"),
                *(f"--master-addr={cluster.address(0)}", str(script), *arguments),
            ],
            {"OMP_NUM_THREADS": "1", **variables},
        )
        for host in range(cluster.hosts)
    ]


def check(processes: list[subprocess.Popen[Any]], ranks: int) -> str:
    """Waits until all ranks have said that they are right, and returns what they printed."""
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)
    right = re.findall(rf"rank (\d+) of {ranks} is right", "".join(outputs))
    assert sorted(map(int, right)) == list(range(ranks))
    return "".join(outputs)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("hosts", "ranks_per_host", "wire"),
    [(2, 1, "none"), (2, 4, "none"), (3, 2, "none"), (5, 1, "none"), (8, 1, "none")]
    + [(2, 2, wire) for wire in ("fp16", "bf16", "int8", "topk")],
)
def test_torchrun_trains_the_model_of_one_process(
    hosts: int, ranks_per_host: int, wire: str, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with Cluster(hosts) as cluster:
        check(torchrun(cluster, ranks_per_host, script, wire, "6"), hosts * ranks_per_host)


@pytest.mark.timeout(300)
def test_links_of_unequal_speed(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with Cluster(3, rate=["500mbit", "100mbit", "250mbit"]) as cluster:
        check(torchrun(cluster, 2, script, "none", "6"), 6)


@pytest.mark.timeout(300)
def test_a_host_that_is_cut_off_in_training_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with Cluster(3, rate="400mbit") as cluster:
        first, *others = torchrun(cluster, 1, script, "none", "100000")
        line = ""
        while "step 20" not in line:
            line = first.stdout.readline() if first.stdout else ""
            assert line or first.poll() is None, "it ended early"
        cluster.cut(2)
        begin = time.monotonic()
        # The launchers of the other hosts end with their ranks.
        output = ""
        while "PeerLostError" not in output and time.monotonic() - begin < 30:
            output += first.stdout.readline() if first.stdout else ""
        assert time.monotonic() - begin < 8
        output += first.communicate(timeout=60)[0]
        assert "rank 2" in output
        assert others[0].communicate(timeout=60)[0].count("PeerLostError") > 0
