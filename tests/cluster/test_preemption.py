"""One of two containers is told to stop: the ranks of both save at the same step, and both start again."""

from __future__ import annotations

import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from network import Cluster, why_not

REASON = why_not()
pytestmark = [pytest.mark.cluster, pytest.mark.skipif(REASON is not None, reason=str(REASON))]

RANKS_PER_HOST = 2
TRAIN = """
import os, pathlib, sys, time
import numpy as np
import smdp

state, pause = pathlib.Path(sys.argv[1]), float(sys.argv[2])
world = smdp.init()
x, step = np.random.default_rng(0).normal(size=50), 0
if state.exists():
    saved = np.load(state)
    x, step = saved[1:], int(saved[0])

def save():
    if world.rank == 0:
        time.sleep(1)  # the other container's ranks must not leave meanwhile
        np.save(state, np.concatenate([[step], x]))
    print("saved at", step, flush=True)

while step < 300:
    x = 0.9 * x + 0.1 * world.all_reduce(np.sin(x * (world.rank + step % 7)), op=smdp.AVG)
    step += 1
    time.sleep(pause)
    smdp.exit_if_preempted(save)
    if step % 10 == 0:
        print("step", step, flush=True)
print("result", x.tobytes().hex(), flush=True)
"""


def start(cluster: Cluster, script: Path, state: Path, pause: float) -> list[Any]:
    return [
        cluster.start(
            rank // RANKS_PER_HOST,
            [sys.executable, str(script), str(state), str(pause)],
            {
                "SMDP_RANK": str(rank),
                "SMDP_WORLD_SIZE": str(2 * RANKS_PER_HOST),
                "SMDP_MASTER_ADDR": cluster.address(0),
                "SMDP_MASTER_PORT": "29600",
                "SMDP_SECRET": "test",
                "OMP_NUM_THREADS": "1",
            },
        )
        for rank in range(2 * RANKS_PER_HOST)
    ]


def finish(ranks: list[Any], code: int) -> list[str]:
    outputs: list[str] = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [code] * len(ranks), "\n".join(outputs)
    assert not any("Traceback" in output for output in outputs), "\n".join(outputs)
    return outputs


@pytest.mark.timeout(400)
@pytest.mark.parametrize("container", [0, 1])
def test_sigterm_reaches_one_container_only(container: int, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    with Cluster(2) as cluster:
        whole = finish(start(cluster, script, tmp_path / "none.npy", 0.0), 0)
        before = cluster.bytes_sent(1)
        ranks = start(cluster, script, tmp_path / "state.npy", 0.01)
        assert "step 10" in ranks[-1].stdout.readline()
        time.sleep(random.uniform(0, 1))
        for rank in ranks[RANKS_PER_HOST * container :][:RANKS_PER_HOST]:
            rank.send_signal(signal.SIGTERM)
        stopped = {re.findall(r"saved at (\d+)", output)[0] for output in finish(ranks, 75)}
        assert len(stopped) == 1
        assert cluster.bytes_sent(1) > before
        resumed = finish(start(cluster, script, tmp_path / "state.npy", 0.0), 0)
    ends = {re.findall("result .*", output)[0] for output in [*whole, *resumed]}
    assert len(ends) == 1
