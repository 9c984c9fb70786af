"""Jobs of several hosts: a network namespace and an /opt/ml each."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "cluster"))
from containers import ALONE, HAS_TOOLKIT, TOOLKIT, Container
from network import Cluster, why_not

REASON = why_not()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(240),
]
HOSTS = ["algo-1", "algo-2"]
RUNNER = TOOLKIT if HAS_TOOLKIT else ALONE
JOIN = "import numpy as np, smdp, os, sys, time\nworld = smdp.init()\n"
# Trains until something happens.
FOREVER = (
    JOIN + "print('joined', flush=True)\nwhile True:\n    world.all_reduce(np.ones(9)); time.sleep(0.05)\n"
)


def start(cluster: Cluster, container: Container, runner: Sequence[str] = RUNNER) -> subprocess.Popen[str]:
    current = json.loads((container.base / "input" / "config" / "resourceconfig.json").read_text())
    assert isinstance(cluster.names, Sequence)
    host = cluster.names.index(current["current_host"])
    return cluster.start(host, list(runner), container.variables)


def job(
    folder: Path,
    script: str,
    hosts: Sequence[str] = HOSTS,
    hyperparameters: Mapping[str, Any] | None = None,
    **variables: str,
) -> list[Container]:
    return [
        Container(
            folder / host, script, hosts=hosts, current=host, hyperparameters=hyperparameters, **variables
        )
        for host in hosts
    ]


def outputs(
    processes: Sequence[subprocess.Popen[str]], codes: Sequence[int], timeout: float = 120
) -> list[str]:
    told = [process.communicate(timeout=timeout)[0] for process in processes]
    assert [process.returncode for process in processes] == list(codes), "\n---\n".join(told)
    return told


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    told = ""
    assert process.stdout is not None
    while text not in told:
        line = process.stdout.readline()
        assert line, f"it ended early:\n{told}"
        told += line
    return told


@pytest.mark.skipif(not HAS_TOOLKIT, reason="sagemaker-training is not installed")
def test_two_hosts_train_one_model(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    containers = job(tmp_path, "numpy_digits.py", hyperparameters={"epochs": 40}, SMDP_LOCAL_WORLD_SIZE="2")
    for container in containers:
        (container.base / "checkpoints").mkdir()
    with Cluster(2, names=HOSTS) as cluster:
        told = outputs([start(cluster, container, TOOLKIT) for container in containers], [0, 0])
        assert cluster.bytes_sent(0) > 40 * 650 * 8  # the gradients
    for host, text in zip(HOSTS, told, strict=True):
        ranks = re.findall(rf"rank (\d) of 4: accuracy ([\d.]+) on {host}", text)
        assert sorted(rank for rank, _ in ranks) == (["0", "1"] if host == "algo-1" else ["2", "3"])
        assert all(float(accuracy) > 0.85 for _, accuracy in ranks)
        assert "Reporting training SUCCESS" in text
    assert [(container.base / "model" / "weights.npy").is_file() for container in containers] == [True, False]
    assert all((container.base / "checkpoints" / "weights.npz").is_file() for container in containers)


def test_rank_0_is_on_the_first_of_the_list_and_hosts_may_differ(tmp_path: Path) -> None:
    hosts = ["algo-10", "algo-2"]  # in this order: it is that of text
    show = JOIN + "print(f'{os.environ[\"SM_CURRENT_HOST\"]}: {world.rank} of {world.size}')\nworld.barrier()"
    first, second = job(tmp_path, show, hosts)
    first.variables["SMDP_LOCAL_WORLD_SIZE"], second.variables["SM_NUM_GPUS"] = "1", "2"
    with Cluster(2, names=hosts) as cluster:
        late = start(cluster, second)
        time.sleep(3)
        told = outputs([start(cluster, first), late], [0, 0])
    assert "algo-10: 0 of 3" in told[0]
    assert "algo-2: 1 of 3" in told[1] and "algo-2: 2 of 3" in told[1]


@pytest.mark.parametrize("culprit", [0, 1])
@pytest.mark.parametrize("has_joined", [False, True])
def test_a_failing_rank_ends_all_hosts_and_is_named(culprit: int, has_joined: bool, tmp_path: Path) -> None:
    fail = f"if os.environ['RANK'] == '{culprit}': raise LookupError('no shoe has this size')\n"
    script = JOIN + fail + "world.barrier()" if has_joined else "import os\n" + fail + JOIN
    containers = job(tmp_path, script)
    begin = time.monotonic()
    with Cluster(2, names=HOSTS) as cluster:
        told = outputs([start(cluster, container) for container in containers], [1, 1])
    assert time.monotonic() - begin < 60  # and not SMDP_INIT_TIMEOUT
    for container, text in zip(containers, told, strict=True):
        assert container.failure.startswith(
            f"[smdp] rank {culprit} on {HOSTS[culprit]} failed first: exit code 1\n"
        ), text
        assert container.failure.endswith("LookupError: no shoe has this size")


@pytest.mark.parametrize("gone", [0, 1])
@pytest.mark.parametrize("how", ["cut off", "killed"])
def test_a_host_that_is_gone_is_named(gone: int, how: str, tmp_path: Path) -> None:
    containers = job(tmp_path, FOREVER)
    with Cluster(2, names=HOSTS) as cluster:
        processes = [start(cluster, container) for container in containers]
        wait_for(processes[1 - gone], "joined")
        wait_for(processes[gone], "joined")
        begin = time.monotonic()
        if how == "killed":
            processes[gone].kill()
        else:
            cluster.cut(gone)
        told = outputs([processes[1 - gone]], [1], timeout=60)[0]
        assert time.monotonic() - begin < 40
    failure = containers[1 - gone].failure
    assert failure.startswith(f"[smdp] host {HOSTS[gone]}: it is gone"), told


@pytest.mark.parametrize("told", [0, 1])
def test_sigterm_to_one_container_is_named_where_nobody_hears_it(told: int, tmp_path: Path) -> None:
    containers = job(tmp_path, FOREVER)
    with Cluster(2, names=HOSTS) as cluster:
        processes = [start(cluster, container) for container in containers]
        for process in processes:
            wait_for(process, "joined")
        processes[told].send_signal(signal.SIGTERM)
        texts = outputs(processes, [143, 143])
    assert "PeerLostError" in texts[1 - told]
    for container in containers:
        assert container.failure.startswith(f"[smdp] rank {told} on {HOSTS[told]} ended on SIGTERM"), texts


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("SMDP_SECRET", ("one", "two"), "algo-2 and algo-1 have different SMDP_SECRETs"),
        ("SM_HOSTS", ('["algo-1", "algo-2"]', '["algo-1", "algo-2", "algo-3"]'), "the job's hosts are"),
    ],
)
def test_hosts_that_do_not_agree(name: str, values: tuple[str, str], message: str, tmp_path: Path) -> None:
    containers = job(tmp_path, "print('trained')", SMDP_INIT_TIMEOUT="4")
    for container, value in zip(containers, values, strict=True):
        container.variables[name] = value
        if name == "SM_HOSTS":
            container.variables["SM_CURRENT_HOST"] = container.base.name
    with Cluster(2, names=HOSTS) as cluster:
        told = outputs([start(cluster, container, ALONE) for container in containers], [2, 2])
    assert message in told[1]
    assert "did not connect within 4 s: algo-2" in told[0] and message in told[0]


def test_a_host_that_has_saved_waits_for_one_that_still_saves(tmp_path: Path) -> None:
    script = """
import os, signal, sys, time
def stop(*_):
    time.sleep(9 * int(os.environ["RANK"]))  # longer than ranks are given after a failure
    open(os.path.join(os.environ["SM_OUTPUT_DATA_DIR"], "saved"), "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True)
time.sleep(100)
"""
    containers = job(tmp_path, script)
    with Cluster(2, names=HOSTS) as cluster:
        processes = [start(cluster, container) for container in containers]
        for process in processes:
            wait_for(process, "ready")
        for process in processes:
            process.send_signal(signal.SIGTERM)
        outputs(processes, [75, 75])
    for container in containers:
        assert (container.base / "output" / "data" / "saved").is_file()
        assert "asks to be started again: exit code 75" in container.failure


@pytest.mark.parametrize("told", [0, 1])
def test_a_spot_container_that_is_taken_away_stops_all_and_the_next_start_goes_on(
    told: int, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn")
    endless = {"epochs": 10**6, "save-every": 10**6}  # only smdp.exit_if_preempted() saves
    containers = job(tmp_path / "first", "numpy_digits.py", hyperparameters=endless)
    for container in containers:
        (container.base / "checkpoints").mkdir()
    with Cluster(2, names=HOSTS) as cluster:
        processes = [start(cluster, container) for container in containers]
        wait_for(processes[0], "smdp_step=5 ")
        processes[told].send_signal(signal.SIGTERM)
        outputs(processes, [75, 75])
    for container in containers:
        assert "has saved its work and asks to be started again: exit code 75" in container.failure
    saved = [np.load(container.base / "checkpoints" / "weights.npz") for container in containers]
    epoch = int(saved[0]["epoch"])
    assert epoch == int(saved[1]["epoch"])  # all stopped at the same step
    restarted = job(tmp_path / "second", "numpy_digits.py", hyperparameters={"epochs": epoch + 20})
    for before, after in zip(containers, restarted, strict=True):
        (before.base / "checkpoints").rename(after.base / "checkpoints")
    with Cluster(2, names=HOSTS) as cluster:
        texts = outputs([start(cluster, container) for container in restarted], [0, 0])
    for host, text in zip(HOSTS, texts, strict=True):
        assert text.count(f"going on with epoch {epoch + 1}\n") == 1, text
        assert len(re.findall(rf"rank \d of 2: accuracy 0\.[89]\d* on {host}", text)) == 1, text
    assert f"smdp_step={epoch + 19} " in texts[0]
