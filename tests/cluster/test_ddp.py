"""Data parallel training on several hosts: right and faster than gloo."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from network import Cluster, why_not

REASON = why_not()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


def bench(cluster: Cluster, ranks_per_host: int, wires: str, steps: int = 4) -> dict[str, float]:
    """Run `smdp bench ddp` with a rank as a launcher would start it; seconds per contender."""
    ranks = cluster.hosts * ranks_per_host
    command = [sys.executable, "-m", "smdp", "bench", "ddp", "--json", "--against", "gloo"]
    command += ["--compression", wires, "--iters", str(steps)]
    processes = []
    for rank in range(ranks):
        environ = {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_RANK": str(rank % ranks_per_host),
            "MASTER_ADDR": cluster.address(0),
            "MASTER_PORT": "29511",
            "GLOO_SOCKET_IFNAME": "eth0",
            "OMP_NUM_THREADS": "1",
        }
        processes.append(cluster.start(rank // ranks_per_host, command, environ))
    outputs = [process.communicate(timeout=200)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * ranks, outputs[0][-3000:]
    line = next(line for line in outputs[0].splitlines() if line.startswith("{"))
    seconds: dict[str, float] = json.loads(line)["seconds"]
    print(
        cluster.hosts, "hosts,", ranks_per_host, "ranks each:", {k: round(v, 3) for k, v in seconds.items()}
    )
    return seconds


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("hosts", "ranks_per_host"), [(2, 2), (2, 4), (4, 2), (4, 1)])
def test_faster_than_gloo(hosts: int, ranks_per_host: int) -> None:
    pytest.importorskip("torch")
    with Cluster(hosts, rate="400mbit") as cluster:
        seconds = bench(cluster, ranks_per_host, "none")
    # Figures are the benchmark's business; this only tells that nothing is badly wrong.
    assert seconds["none"] < 1.3 * seconds["gloo"]


@pytest.mark.timeout(400)
def test_compression_saves_time() -> None:
    pytest.importorskip("torch")
    with Cluster(2, rate="400mbit") as cluster:
        seconds = bench(cluster, 2, "none,fp16,bf16,int8,topk")
    assert seconds["bf16"] < 0.7 * seconds["none"]
    assert seconds["int8"] < 0.5 * seconds["none"]
    assert seconds["topk"] < 0.4 * seconds["none"]
