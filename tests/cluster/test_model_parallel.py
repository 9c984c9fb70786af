"""Scripts for SageMaker Model Parallel, unchanged, over two hosts: they train as one process does."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from network import Cluster, why_not
from test_training import torchrun

REASON = why_not()
pytestmark = [
    pytest.mark.cluster,
    pytest.mark.skipif(REASON is not None, reason=str(REASON)),
    pytest.mark.timeout(300),
]

SCRIPTS = Path(__file__).parents[1] / "plugins" / "compat" / "scripts"
GPT = SCRIPTS / "smp_train_gpt.py"
BATCH = 8  # of all replicas together
BOTH = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2}


def train(script: Path, *words: str, **variables: str) -> str:
    """Runs a script on two hosts of two ranks to its end; returns what the ranks printed."""
    with Cluster(2) as cluster:
        processes = torchrun(
            cluster, 2, script, *words, SMDP_COMPAT="1", CUDA_VISIBLE_DEVICES="", **variables
        )
        outputs = [process.communicate(timeout=200)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
        # More than what meeting takes, in both directions: layers, stages or shards are on both hosts.
        assert min(cluster.bytes_sent(host) for host in range(2)) > 200_000
    return "".join(outputs)


def words_of(more: dict[str, Any], batch: int, losses: Path) -> list[str]:
    return [
        f"--{name}={value}" for name, value in {**more, "train_batch_size": batch, "losses": losses}.items()
    ]


@functools.cache
def alone() -> list[float]:
    """The losses of one process without a cluster."""
    with tempfile.TemporaryDirectory() as folder:
        losses = Path(folder, "losses.json")
        subprocess.run(
            [sys.executable, "-m", "smdp.compat", str(GPT), *words_of({}, BATCH, losses)],
            check=True,
            timeout=200,
        )
        found: list[float] = json.loads(losses.read_text())
    assert found[-1] < 0.97 * found[0], found
    return found


@pytest.mark.parametrize(
    "more",
    [
        BOTH,
        {**BOTH, "placement_strategy": "spread"},
        {"sharded_data_parallel_degree": 2, "grad_clip": 1e6},
        {"sharded_data_parallel_degree": 4, "grad_clip": 1e6},
    ],
    ids=["cluster", "spread", "two-shards", "four-shards"],
)
def test_gpt(more: dict[str, Any], tmp_path: Path) -> None:
    """Stages or slices, and shards of parameters, on both hosts."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    losses = tmp_path / "losses.json"
    batch = BATCH * more.get("pipeline_parallel_degree", 1) // 4
    told = train(
        GPT, *words_of({"save_final_full_model": 1, "model-dir": tmp_path / "model", **more}, batch, losses)
    )
    assert told.count(" trained") == 4
    assert json.loads(losses.read_text()) == pytest.approx(alone(), abs=2e-5)


def test_mnist(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    config = {"ddp": True, "partitions": 2, "tensor_parallel_degree": 2, "microbatches": 4}
    words = ["--save", str(tmp_path / "model.pt"), "--batch-size", "64"]
    told = train(SCRIPTS / "smp_mnist.py", *words, SM_HP_MP_PARAMETERS=json.dumps(config))
    ((accuracy, count),) = re.findall(r"accuracy ([\d.]+) on (\d) ranks", told)
    assert float(accuracy) > 0.85 and count == "4"
    places = {f"model.pt_{stage}_{part}" for stage in range(2) for part in range(2)}
    assert {file.name for file in tmp_path.iterdir()} == places
