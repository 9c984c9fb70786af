"""Scripts for SageMaker Model Parallel: each trains as one process does, in every layout."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from launchers import check, start

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(600)  # four ranks take turns on two cores

BATCH = 8  # of all replicas together
GPT, BERT, T5 = "smp_train_gpt.py", "smp_train_bert.py", "smp_train_t5.py"
LAUNCHERS = ["torchrun", "mpirun", "mpirun and a variable"]


def slow(*values: Any, id: str | None = None) -> Any:
    return pytest.param(*values, id=id, marks=pytest.mark.slow)


def parameters(**more: Any) -> str:
    return json.dumps({"ddp": True, "microbatches": 2, **more})


def trained(launcher: str, script: str, ranks: int, *words: str, **variables: str) -> list[float]:
    """Runs a script to its end; returns the loss of each step."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "losses.json")
        done = start(launcher, script, *words, "--losses", str(file), ranks=ranks, seconds=240, **variables)
        assert done.returncode == 0 and done.stdout.count(" trained") == ranks, done.stderr[-6000:]
        found: list[float] = json.loads(file.read_text())
        return found


@functools.cache
def alone(script: str) -> list[float]:
    words = [f"--train_batch_size={BATCH}", "--max_steps=6"]
    return trained("smdp run", script, 1, *words, SM_HP_MP_PARAMETERS=parameters(ddp=False))


def check_losses(losses: list[float], script: str, tolerance: float = 2e-5) -> None:
    expected = alone(script)
    assert expected[-1] < 0.97 * expected[0], expected
    assert losses == pytest.approx(expected[: len(losses)], abs=tolerance)


def gpt(launcher: str, ranks: int, *words: str, **more: int) -> list[float]:
    degree = more.get("pipeline_parallel_degree", 1)
    if more.get("prescaled_batch"):
        degree *= more["tensor_parallel_degree"]
    more = {**more, "train_batch_size": BATCH * degree // ranks // more.get("gradient_accumulation", 1)}
    return trained(launcher, GPT, ranks, *words, *(f"--{name}={value}" for name, value in more.items()))


MNIST = [
    ({"partitions": 2, "microbatches": 4, "pipeline": "interleaved"}, 2),
    ({"tensor_parallel_degree": 2}, 2),
    ({"partitions": 2, "microbatches": 4, "pipeline": "simple"}, 4),
    ({"partitions": 2, "tensor_parallel_degree": 2, "microbatches": 4}, 4),
    ({"tensor_parallel_degree": 4}, 4),
]


@pytest.mark.parametrize(
    ("launcher", "config", "ranks"),
    [
        ("torchrun", *MNIST[1]),
        *(slow("smdp run", *each) for each in MNIST),
        *(slow(each, *MNIST[0]) for each in LAUNCHERS),
        *(slow(each, *MNIST[1]) for each in LAUNCHERS[1:]),
        *(slow(each, *MNIST[3]) for each in LAUNCHERS),
    ],
)
def test_mnist(launcher: str, config: dict[str, Any], ranks: int, tmp_path: Path) -> None:
    """The configuration comes from the variable, as SageMaker sets it."""
    pytest.importorskip("sklearn")
    partitions, degree = config.get("partitions", 1), config.get("tensor_parallel_degree", 1)
    batch = min(64, 128 * partitions // ranks)  # enough steps for many replicas
    words = ["--save", str(tmp_path / "model.pt"), "--batch-size", str(batch)]
    check(
        launcher, "smp_mnist.py", *words, ranks=ranks, seconds=240, SM_HP_MP_PARAMETERS=parameters(**config)
    )
    suffixes = [f"_{stage}_{part}" for stage in range(partitions) for part in range(degree)]
    if degree == 1:
        suffixes = [f"_{stage}" for stage in range(partitions)]
    assert {file.name for file in tmp_path.iterdir()} == {f"model.pt{each}" for each in suffixes}


PIPELINE = {"pipeline_parallel_degree": 2, "manual_partition": 1, "activation_checkpointing": 1}
TENSOR = {"tensor_parallel_degree": 2, "prescaled_batch": 1, "activation_checkpointing": 1}
SHARDED = {"sharded_data_parallel_degree": 2}
BOTH = {"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2}


@pytest.mark.parametrize(
    ("ranks", "words", "more"),
    [
        (2, [], {**TENSOR, "checkpoint_sublayers": 1}),
        slow(2, [], PIPELINE, id="stages"),
        slow(2, ["--optimize=memory"], {"tensor_parallel_degree": 2}, id="memory"),
        slow(2, [], {"use_distributed_transformer": 1}, id="degree-one"),
        slow(2, [], {"shard_optimizer_state": 1, "delayed_param": 0}, id="sharded-state"),
        slow(2, [], {"gradient_accumulation": 2, "microbatches": 1}, id="accumulation"),
        slow(4, ["--activation_strategy=group_2"], {**BOTH, "activation_checkpointing": 1}, id="groups"),
        slow(
            4, [], {**BOTH, "prescaled_batch": 1, "offload_activations": 1, "skip_tracing": 1}, id="offload"
        ),
        slow(4, ["--placement_strategy=spread"], {**BOTH, "optimize": "memory"}, id="spread"),
        slow(4, [], {"tensor_parallel_degree": 4}, id="four-parts"),
        slow(4, [], {"pipeline_parallel_degree": 4, "microbatches": 4}, id="four-stages"),
        slow(4, [], {"pipeline_parallel_degree": 2, "shard_optimizer_state": 1}, id="sharded-stages"),
        slow(4, [], {"tensor_parallel_degree": 2, "shard_optimizer_state": 1}, id="sharded-slices"),
        slow(2, ["--grad_clip=1e6"], SHARDED, id="sharded-parameters"),
        slow(4, ["--grad_clip=1e6"], {**SHARDED, "activation_checkpointing": 1}, id="two-groups"),
        slow(4, ["--grad_clip=1e6"], {**SHARDED, "tensor_parallel_degree": 2}, id="shards-of-slices"),
        slow(2, [], {**SHARDED, "bf16": 1}, id="bf16"),
        slow(2, [], {**SHARDED, "fp16": 1}, id="fp16-sharded-parameters"),
        slow(2, [], {"pipeline_parallel_degree": 2, "fp16": 1}, id="fp16-stages"),
        slow(2, [], {"tensor_parallel_degree": 2, "prescaled_batch": 1, "fp16": 1}, id="fp16-slices"),
        slow(4, [], {**BOTH, "fp16": 1}, id="fp16-both"),
        slow(2, [], {"shard_optimizer_state": 1, "fp16": 1}, id="fp16-sharded-state"),
    ],
)
def test_gpt(ranks: int, words: list[str], more: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    folders = ["--model-dir", str(tmp_path / "model"), "--save_final_full_model=1"]
    tolerance = 3e-2 if more.get("fp16") or more.get("bf16") else 2e-5
    check_losses(gpt("smdp run", ranks, *words, *folders, **more), GPT, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("ranks", "more"), [(2, PIPELINE), (2, TENSOR), (2, {**SHARDED, "grad_clip": 10**6}), (4, BOTH)]
)
def test_gpt_by_other_launchers(launcher: str, ranks: int, more: dict[str, Any]) -> None:
    pytest.importorskip("transformers")
    check_losses(gpt(launcher, ranks, **more), GPT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "more", "tolerance"),
    [
        (2, PIPELINE, 2e-5),
        (2, TENSOR, 2e-5),
        (2, {"shard_optimizer_state": 1}, 2e-5),
        (4, {**BOTH, "prescaled_batch": 1}, 2e-5),
        (2, {**TENSOR, "fp16": 1}, 3e-2),
        (2, {**SHARDED, "bf16": 1}, 3e-2),
    ],
)
def test_gpt_resumes(ranks: int, more: dict[str, Any], tolerance: float, tmp_path: Path) -> None:
    """A job that ends after four steps leaves the checkpoints of the last two, and the next one continues."""
    pytest.importorskip("transformers")
    folder = ["--checkpoint-dir", str(tmp_path)]
    gpt("smdp run", ranks, *folder, "--checkpoint_freq=1", "--max_steps=4", **more)
    # Amazon's own reader of sharded data parallelism opens the folder that `newest` names.
    newest = "total_steps4_partial" if "sharded_data_parallel_degree" in more else "total_steps4"
    assert (tmp_path / "newest").read_text() == newest
    assert {each.name for each in tmp_path.glob("*_partial")} == {
        "total_steps3_partial",
        "total_steps4_partial",
    }
    check_losses(gpt("smdp run", ranks, *folder, "--load_partial=1", **more), GPT, tolerance)


@pytest.mark.parametrize(
    ("launcher", "script", "ranks", "config"),
    [
        ("mpirun", BERT, 2, {"partitions": 2, "optimize": "speed"}),
        slow("torchrun", T5, 2, {"partitions": 2, "active_microbatches": 1}),
        slow("smdp run", T5, 2, {"partitions": 2}),
        *(slow(each, T5, 2, {"partitions": 2, "active_microbatches": 1}) for each in LAUNCHERS[1:]),
        *(slow(each, BERT, 2, {"partitions": 2}) for each in ("smdp run", "torchrun")),
        slow("smdp run", BERT, 2, {"tensor_parallel_degree": 2}),
        slow("smdp run", BERT, 4, {"partitions": 2, "placement_strategy": "spread"}),
        slow("smdp run", BERT, 4, {"partitions": 2, "tensor_parallel_degree": 2}),
        slow("smdp run", T5, 4, {"partitions": 2, "shard_optimizer_state": True}),
        slow("smdp run", T5, 4, {"partitions": 4, "microbatches": 4, "pipeline": "simple"}),
        *(slow(each, script, 4, {"partitions": 2}) for each in LAUNCHERS for script in (BERT, T5)),
    ],
)
def test_encoders(launcher: str, script: str, ranks: int, config: dict[str, Any], tmp_path: Path) -> None:
    """BERT and T5, whose jobs save in the middle and resume from there."""
    pytest.importorskip("transformers")
    words = [f"--train_batch_size={BATCH * config.get('partitions', 1) // ranks}"]
    folder = {BERT: "--output_dir", T5: "--checkpoint_dir"}[script]
    resume = {BERT: "--resume_step=3", T5: "--load_partial=1"}[script]
    words += [folder, str(tmp_path)]
    variables = {"SM_HP_MP_PARAMETERS": parameters(**config)}
    check_losses(trained(launcher, script, ranks, *words, **variables), script)
    if launcher == "smdp run":
        check_losses(trained(launcher, script, ranks, *words, resume, **variables), script)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_bert_in_bfloat16_with_accumulation(ranks: int) -> None:
    pytest.importorskip("transformers")
    words = [f"--train_batch_size={BATCH // ranks}", "--gradient_accumulation_steps=2", "--amp=1"]
    config = parameters(partitions=2, microbatches=1)
    check_losses(trained("smdp run", BERT, ranks, *words, SM_HP_MP_PARAMETERS=config), BERT, 2e-2)
