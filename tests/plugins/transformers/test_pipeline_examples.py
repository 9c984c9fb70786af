"""The examples of model parallelism: the split is told, the loss falls, other stages go on bit for bit."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from transformers import GPT2LMHeadModel

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
# Eight processes that import torch, on few cores.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]
PARAMETERS = 76  # of 6 layers, with the head tied to the embedding


def start(script: str, ranks: int, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "smdp", "run", "-n", str(ranks), str(EXAMPLES / script), *arguments],
        capture_output=True,
        text=True,
        timeout=230,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
    )
    assert (done.returncode != 0) == (code != 0), done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("gpt2")
    return folder, start("pipeline_gpt2.py", 2, "--output", str(folder), "--steps", "10")


def test_split_in_two(trained: tuple[Path, str]) -> None:
    _, output = trained
    units = ["wte", "wpe", *(f"h.{layer}" for layer in range(6)), "ln_f"]
    for name in [*(f"transformer.{unit}" for unit in units), "lm_head"]:
        assert re.search(rf"{re.escape(name)} +[01] +[01] +[\d.]+ ms +[\d.]+ ms +[\d.]+ MiB", output), name
    bubble = re.findall(r"predicted: step [\d.]+ ms, bubble ([\d.]+)%", output)
    assert 0 < float(bubble[0]) < 50
    losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", output)]
    assert len(losses) == 2 and losses[1] < losses[0] < 5


def test_resumed_in_four(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    checkpoint = folder / "step-10"
    output = start(
        "pipeline_gpt2.py",
        4,
        "--stages",
        "4",
        "--output",
        str(folder),
        "--resume",
        str(checkpoint),
        "--steps",
        "5",
    )
    assert len(re.findall(r"\w+ +[0-9a-f]{16} as saved", output)) == PARAMETERS
    assert f"{PARAMETERS} parameters and their optimizer state are as saved, bit for bit" in output
    assert "step 15: loss" in output and (folder / "step-15" / ".metadata").exists()


def test_a_difference_is_found(trained: tuple[Path, str], tmp_path: Path) -> None:
    folder, _ = trained
    told = folder / "step-10" / "digests.json"
    saved = told.read_text()
    try:
        told.write_text(
            json.dumps({**json.loads(saved), "digests": {**json.loads(saved)["digests"], "x": "0"}})
        )
        arguments = ("--stages", "1", "--output", str(tmp_path), "--resume", str(folder / "step-10"))
        output = start("pipeline_gpt2.py", 1, *arguments, code=1)
    finally:
        told.write_text(saved)
    assert len(re.findall(r"[0-9a-f]{16} as saved", output)) == PARAMETERS
    assert len(re.findall("DIFFERS", output)) == 1
    assert "what was loaded is not what was saved" in output


def test_transformers_reads_it(trained: tuple[Path, str]) -> None:
    folder, _ = trained
    files = {path.name for path in (folder / "step-10" / "transformers").glob("*.safetensors")}
    assert files == {"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
    model, told = GPT2LMHeadModel.from_pretrained(
        folder / "step-10" / "transformers", output_loading_info=True
    )
    assert not any(told.values()), told
    assert model.lm_head.weight is model.transformer.wte.weight
    other = GPT2LMHeadModel(model.config)
    with pytest.warns(UserWarning, match="single process"):
        dcp.load({"model": dict(other.named_parameters())}, checkpoint_id=folder / "step-10")
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_hybrid() -> None:
    output = start("hybrid_parallel.py", 8)
    assert "8 processes: 2-way data parallel, 4-way model parallel" in output
    assert "global batch 64: 32 images per replica in each iteration" in output
    assert "640 images: 10 iterations" in output
    losses = [float(loss) for loss in re.findall(r"iteration \d+: loss ([\d.]+)", output)]
    assert len(losses) == 10 and losses[-1] < losses[0] - 0.5
    assert len(re.findall(r"replica [01], stage [0-3]: \d", output)) == 8
    assert "all 2 replicas have the same parameters, bit for bit" in output
