"""Several hosts: layout, results, what crosses the links, and what happens when one is cut off."""

from __future__ import annotations

import os
import re
import signal
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


def job(cluster: Cluster, layout: list[int], script: Path, **variables: str) -> list[subprocess.Popen[Any]]:
    """Start one rank per entry of `layout`, on that host."""
    common = {
        "SMDP_WORLD_SIZE": str(len(layout)),
        "SMDP_MASTER_ADDR": cluster.address(layout[0]),
        "SMDP_MASTER_PORT": "28000",
        "SMDP_SECRET": "cluster",
        **variables,
    }
    command = [sys.executable, "-u", str(script)]
    return [
        cluster.start(host, command, {**common, "SMDP_RANK": str(rank)}) for rank, host in enumerate(layout)
    ]


def test_smoke_two_hosts_of_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import numpy as np, smdp
g = smdp.init(timeout=30)
assert g.hosts == [[0, 1], [2, 3]], g.hosts
for count in (1, 1000, 2_000_000):
    assert (g.all_reduce(np.full(count, g.rank + 1.0)) == 10).all()
    assert (g.all_gather(np.full(count, g.rank))[2] == 2).all()
    assert (g.broadcast(np.full(count, g.rank), 3) == 3).all()
# Parts of one host, and of one rank of each: rank 0 is in the first ones only.
for color, ranks in ((g.rank // 2, g.hosts[g.rank // 2]), (g.rank % 2, [g.rank % 2, g.rank % 2 + 2])):
    assert g.split(color).all_gather(np.full(1, g.rank)).ravel().tolist() == ranks
""")
    with Cluster(2) as cluster:
        for process in job(cluster, [0, 0, 1, 1], script):
            output = process.communicate(timeout=60)[0]
            assert process.returncode == 0, output
        # 2 (M - 1) / M of 16 MB for all_reduce, twice the blocks of 16 MB for all_gather, one for broadcast;
        # had ranks of one host talked over the link, it would be about twice that.
        assert cluster.bytes_sent(0) < 1.15 * (16e6 + 32e6) + 1e6


def succeed(processes: list[subprocess.Popen[Any]]) -> list[str]:
    outputs = [process.communicate(timeout=100)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), "\n".join(outputs)
    return outputs


_TIMED = """
import numpy as np, smdp, time
g = smdp.init(timeout=60)
a = np.ones(25_000_000 // 4, np.float32)
g.barrier()
times = []
for _ in range(5):
    g.barrier()
    start = time.monotonic()
    g.all_reduce(a)
    times.append(time.monotonic() - start)
print("least ms", 1e3 * min(times), "median ms", 1e3 * sorted(times)[2])
"""

_SUMS = """
import numpy as np, smdp
g = smdp.init(timeout=30)
for count in (1, 1000, 300_000):
    assert (g.all_reduce(np.full(count, g.rank + 1.0)) == sum(range(1, g.size + 1))).all()
g.send(np.ones(3), (g.rank + 1) % g.size, tag=1) if g.rank % 2 else None
message = np.zeros(3)
if g.rank % 2 == 0: g.recv(message, (g.rank - 1) % g.size, tag=1)
print(g.hosts)
"""


def test_ipv6(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SUMS)
    with Cluster(2, ipv6=True) as cluster:
        succeed(job(cluster, [0, 0, 1, 1], script))
        assert cluster.bytes_sent(1) > 2_000_000


def test_master_whose_name_is_its_own_loopback(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SUMS)
    with Cluster(2, names=True) as cluster:
        succeed(job(cluster, [0, 0, 1, 1], script, SMDP_MASTER_ADDR="node0"))


@pytest.mark.parametrize("algorithm", ["direct", "ring", "recursive_doubling"])
def test_algorithms_between_hosts(algorithm: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SUMS)
    with Cluster(4) as cluster:
        succeed(job(cluster, [0, 1, 2, 3], script, SMDP_ALGORITHM=algorithm))


def test_second_interface_is_used_when_named(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_SUMS)
    with Cluster(2, rails=2) as cluster:
        succeed(job(cluster, [0, 1], script, SMDP_SOCKET_IFNAME="eth1"))
        assert cluster.bytes_sent(0, rail=1) > 2_000_000 > 20 * cluster.bytes_sent(0, rail=0)


def test_two_rails_carry_twice_as_much(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_TIMED)
    with Cluster(2, rate="500mbit", rails=2) as cluster:
        took = {}
        for names in ("eth0", "eth0,eth1"):
            before = [cluster.bytes_sent(0, rail) for rail in range(2)]
            output = succeed(job(cluster, [0, 1], script, SMDP_SOCKET_IFNAME=names))[0]
            took[names] = float(re.findall(r"median ms ([0-9.]+)", output)[0])
            sent = [cluster.bytes_sent(0, rail) - before[rail] for rail in range(2)]
            print(f"{names}: {took[names]:.0f} ms, bytes {sent}")
        assert 0.7 < sent[0] / sent[1] < 1.4, sent
    assert took["eth0,eth1"] < 0.7 * took["eth0"], took


def test_killed_rank_is_named_on_all_hosts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
import numpy as np, smdp, time, os
g = smdp.init(timeout=60)
g.barrier()
print("ready", os.getpid(), flush=True)
try:
    while True:
        g.all_reduce(np.ones(500_000))
except smdp.PeerLostError as error:
    print("at", time.monotonic(), error.ranks, error, flush=True)
""")
    with Cluster(2) as cluster:
        processes = job(cluster, [0, 0, 1, 1], script)
        pids = []
        for process in processes:
            assert process.stdout is not None
            pids.append(int(process.stdout.readline().split()[1]))
        time.sleep(0.5)
        start = time.monotonic()
        os.kill(pids[2], signal.SIGKILL)
        for rank in (0, 1, 3):
            output = processes[rank].communicate(timeout=30)[0]
            found = re.search(r"at ([0-9.]+) \[(.*?)\] (.*)", output)
            assert found, (rank, output)
            assert float(found[1]) - start < 5, output
            assert found[2] == "2", output


def test_torch_ddp_over_hosts(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text("""
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group("smdp")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(300, 100))
data = torch.randn(8, 300)
mine = data.chunk(dist.get_world_size())[dist.get_rank()]
for _ in range(3):
    loss = model(mine).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.1 * p.grad
            p.grad = None
torch.manual_seed(0)
alone = torch.nn.Linear(300, 100)
for _ in range(3):
    alone(data).pow(2).mean().backward()
    with torch.no_grad():
        for p in alone.parameters():
            p -= 0.1 * p.grad
            p.grad = None
for a, b in zip(model.parameters(), alone.parameters()):
    assert torch.allclose(a, b, atol=1e-6), (a - b).abs().max()
dist.destroy_process_group()
""")
    with Cluster(2) as cluster:
        layout = [0, 0, 1, 1]
        command = [sys.executable, "-u", str(script)]
        common = {"MASTER_ADDR": cluster.address(0), "MASTER_PORT": "29511", "WORLD_SIZE": "4"}
        succeed(
            [cluster.start(host, command, {**common, "RANK": str(rank)}) for rank, host in enumerate(layout)]
        )
        assert 100_000 < cluster.bytes_sent(0) < 2_000_000


def test_shaped_links_are_used_up(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(_TIMED)
    with Cluster(4, rate="500mbit") as cluster:
        outputs = succeed(job(cluster, [0, 1, 2, 3], script))
        took = float(re.findall(r"least ms ([0-9.]+)", outputs[0])[0])
        bound = 1e3 * 2 * 3 / 4 * 25e6 / (0.956 * 500e6 / 8)
        payload = 5 * 2 * 3 / 4 * 25e6
        sent = [cluster.bytes_sent(host) for host in range(4)]
    print(f"{took:.0f} ms, bound {bound:.0f} ms, {took / bound:.3f}; bytes per host / payload:", end=" ")
    print([round(one / payload, 3) for one in sent])
    assert took < 1.05 * bound
    assert all(0.99 * payload < one < 1.12 * payload for one in sent), (sent, payload)


@pytest.mark.parametrize(
    ("layout", "victim"), [([0, 1, 2], 0), ([0, 1, 2], 2), ([0, 0, 1, 1], 0), ([0, 0, 1, 1], 1)], ids=str
)
@pytest.mark.parametrize("idle", [0, 2.5, 60], ids=["in an operation", "idle, then in one", "idle"])
def test_cut_off_host_is_named(layout: list[int], victim: int, idle: float, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import numpy as np, smdp, time
g = smdp.init(timeout=60)
g.barrier()
print("ready", flush=True)
try:
    until = time.monotonic() + 1 + {idle}
    while {idle} and g.error() is None and time.monotonic() < until:
        time.sleep(0.02)
    while g.error() is None:
        g.all_reduce(np.ones(2_000_000))
    raise g.error()
except smdp.PeerLostError as error:
    print("at", time.monotonic(), error.ranks, error, flush=True)
""")
    lost = [rank for rank, host in enumerate(layout) if host == victim]
    with Cluster(len(set(layout))) as cluster:
        processes = job(cluster, layout, script)
        for process in processes:
            assert process.stdout is not None
            assert "ready" in process.stdout.readline()
        time.sleep(1)
        start = time.monotonic()
        cluster.cut(victim)
        for rank, process in enumerate(processes):
            output = process.communicate(timeout=30)[0]
            found = re.search(r"at ([0-9.]+) \[(.*?)\] (.*)", output)
            assert found, (rank, output)
            print(f"rank {rank}: {float(found[1]) - start:.2f} s, {found[3]}")
            assert float(found[1]) - start < 5, output
            if rank not in lost:
                assert found[2] == ", ".join(map(str, lost)), output
