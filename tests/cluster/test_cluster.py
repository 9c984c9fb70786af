"""Several hosts: layout, results, what crosses the links, and what happens when one is cut off."""

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


def job(cluster: Cluster, layout: list[int], script: Path) -> list[subprocess.Popen[Any]]:
    """Start one rank per entry of `layout`, on that host."""
    common = {
        "SMDP_WORLD_SIZE": str(len(layout)),
        "SMDP_MASTER_ADDR": cluster.address(layout[0]),
        "SMDP_MASTER_PORT": "28000",
        "SMDP_SECRET": "cluster",
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
""")
    with Cluster(2) as cluster:
        for process in job(cluster, [0, 0, 1, 1], script):
            output = process.communicate(timeout=60)[0]
            assert process.returncode == 0, output
        # 2 (M - 1) / M of 16 MB for all_reduce, twice the blocks of 16 MB for all_gather, one for broadcast;
        # had ranks of one host talked over the link, it would be about twice that.
        assert cluster.bytes_sent(0) < 1.15 * (16e6 + 32e6) + 1e6


def test_shaped_links_are_used_up(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("""
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
print("median ms", 1e3 * sorted(times)[2])
""")
    with Cluster(4, rate="500mbit") as cluster:
        processes = job(cluster, [0, 1, 2, 3], script)
        outputs = [process.communicate(timeout=100)[0] for process in processes]
        assert [process.returncode for process in processes] == [0] * 4, outputs
        took = float(re.findall(r"median ms ([0-9.]+)", outputs[0])[0])
        bound = 1e3 * 2 * 3 / 4 * 25e6 / (0.956 * 500e6 / 8)
        payload = 5 * 2 * 3 / 4 * 25e6
        sent = [cluster.bytes_sent(host) for host in range(4)]
    print(f"{took:.0f} ms, bound {bound:.0f} ms, {took / bound:.3f}; bytes per host / payload:", end=" ")
    print([round(one / payload, 3) for one in sent])
    assert took < 1.3 * bound
    assert all(0.99 * payload < one < 1.12 * payload for one in sent), (sent, payload)


@pytest.mark.parametrize("victim", [0, 2])
@pytest.mark.parametrize("busy", [True, False], ids=["in an operation", "idle"])
def test_cut_off_host_is_named(victim: int, busy: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"""
import numpy as np, smdp, time
g = smdp.init(timeout=60)
g.barrier()
print("ready", flush=True)
try:
    if {busy}:
        while True:
            g.all_reduce(np.ones(2_000_000))
    while g.error() is None:
        time.sleep(0.02)
    raise g.error()
except smdp.PeerLostError as error:
    print("at", time.monotonic(), error.ranks, error, flush=True)
""")
    with Cluster(3) as cluster:
        processes = job(cluster, [0, 1, 2], script)
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
            if rank != victim:
                assert found[2] == str(victim), output
