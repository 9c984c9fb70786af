"""Layouts as Python: valid, with the calls that a layout needs, and none that smdp refuses."""

from __future__ import annotations

import ast
import itertools
from typing import Any

import pytest

from smdp import memory
from smdp.plan import Candidate, Cluster, plan, snippet, step_on_cores
from smdp.plan.calls import CALLS, call
from smdp.plan.rules import refusal

MODEL = memory.read_config(
    {"model_type": "gpt2", "n_layer": 8, "n_embd": 64, "n_head": 4, "n_positions": 64, "vocab_size": 128}
)
DISK = "disk:/scratch"
CPUS = Cluster(hosts=2, ranks_per_host=4, cores_per_host=2, memory_bandwidth=5e9)


def of(**options: Any) -> Candidate:
    sizes = {"pipeline": 1, "tensor": 1, "data": 1, "microbatches": 1, "microbatch_size": 4}
    return Candidate(**{**sizes, "precision": "fp32", **options})


def calls(text: str) -> dict[str, set[str]]:
    """Returns the keywords of each call of a function in CALLS."""
    found = {}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            for name in (ast.unparse(node.func), f"smdp.transformers.{ast.unparse(node.func)}"):
                if name in CALLS:
                    found[name] = {keyword.arg or "" for keyword in node.keywords}
    return found


def test_everything_that_is_recommended_runs_and_is_python() -> None:
    found = plan(
        MODEL, CPUS, batch=16, sequence=32, precision=("fp32", "bf16", "fp16"), offload=DISK, simulated=2
    )
    assert found.options and found.unusable
    used: dict[str, set[str]] = {}
    for option in found.options:
        one = option.candidate
        assert refusal(one, CPUS, DISK) is None
        for name, keywords in calls(snippet.python(one, CPUS, DISK)).items():
            used.setdefault(name, set()).update(keywords)
    for one in found.unusable:
        assert one.option is not None and refusal(one.option.candidate, CPUS, DISK) == one.why
    # The table has no more than what is printed.
    assert used == {name: set(known) for name, known in CALLS.items() if name.startswith("smdp.torch.")}


def test_arguments_of_the_trainer() -> None:
    pipe = of(pipeline=2, tensor=2, data=2, microbatches=4, sharding="zero1", checkpointing="each")
    text = snippet.trainer(pipe, CPUS)
    assert (
        'ModelParallel(stages=2, microbatches=4, schedule="1f1b", tensor=2, recompute="each",'
        " shard_optimizer=True)" in text
    )
    assert "per_device_train_batch_size=16)" in text
    rows = of(data=8, microbatches=2, sharding="zero1", precision="bf16")
    text = snippet.trainer(rows, CPUS)
    assert 'DataParallel(precision="bf16", shard_optimizer=True)' in text
    assert "gradient_accumulation_steps=2" in text
    for more, printed in (
        ({"sharding": "zero3"}, "shard_parameters=8)"),
        ({"sharding": "zero3", "sharding_degree": 4}, "shard_parameters=4)"),
        ({"sharding": "zero2"}, 'shard_parameters={"degree": 8, "reshard_after_forward": False})'),
        ({"sharding": "zero1", "sharding_degree": 4}, 'shard_optimizer="host")'),
        (
            {"sharding": "zero1", "offload_optimizer": True},
            'shard_optimizer={"scope": "world", "offload": "disk:/scratch"})',
        ),
    ):
        text = snippet.trainer(of(data=8, **more), CPUS, DISK)
        assert f"DataParallel({printed}" in text, text
        assert calls(text)
    for one in (pipe, rows):
        assert calls(snippet.trainer(one, CPUS))
    with pytest.raises(ValueError, match="the Trainer has no argument for sequence parallelism"):
        snippet.trainer(of(tensor=2, sequence_parallel=True), CPUS)


@pytest.mark.parametrize(
    ("options", "cluster", "offload", "why"),
    [
        ({"data": 8, "sharding": "zero1"}, Cluster(ranks_per_host=8), "", "needs a model on the CPU"),
        ({"pipeline": 2, "data": 4, "sharding": "zero3"}, CPUS, "", "of whole models, not of stages"),
        ({"data": 8, "sharding": "zero2", "precision": "fp16"}, CPUS, "", "does not scale losses"),
        ({"data": 8, "offload_activations": True}, CPUS, "host", "moves tensors of GPUs"),
        ({"data": 8, "offload_activations": True}, Cluster(ranks_per_host=8), DISK, "to host memory only"),
        ({"data": 8, "precision": "megatron_bf16"}, CPUS, "", "for estimates only"),
        ({"pipeline": 8, "precision": "amp"}, CPUS, "", "model's own data type"),
        ({"data": 8, "sharding": "zero1"}, CPUS, "", None),
    ],
)
def test_what_is_refused(options: dict[str, Any], cluster: Cluster, offload: str, why: str | None) -> None:
    found = refusal(of(**options), cluster, offload)
    assert found is None if why is None else why in (found or "")


def test_accumulation_reduces_gradients_once() -> None:
    text = snippet.python(of(data=4, microbatches=3), CPUS)
    assert "model.no_sync() if number < 2" in text and "loss / 3" in text and "import contextlib" in text
    assert "no_sync" not in snippet.python(of(tensor=4, microbatches=3), CPUS)
    assert "backward_passes=3" in snippet.python(of(data=4, microbatches=3, sharding="zero3"), CPUS)


def test_a_keyword_that_is_not_in_the_table() -> None:
    with pytest.raises(KeyError, match="has no keyword nap"):
        call("smdp.torch.pipeline", "model", nap=1)
    assert call("smdp.torch.offload_activations", "model", offload='disk:/a"b') == (
        'smdp.torch.offload_activations(model, offload="disk:/a\\"b")'
    )


def test_ranks_share_the_cores() -> None:
    """As soon as all cores are busy, a step takes the work of all ranks."""
    for ranks, cores in itertools.product((1, 2, 4), (1, 2, 4)):
        assert step_on_cores(1.0, 0.0, ranks=ranks, cores=cores) == max(1.0, ranks / cores)
    assert step_on_cores(1.0, 0.5, ranks=2, cores=1) == 1.0
    with pytest.raises(ValueError, match="bubble = 2"):
        step_on_cores(1.0, 2, ranks=2, cores=1)


def test_steps_on_cores() -> None:
    """A second rank per core doubles computation, reduction and update."""
    shape: dict[str, Any] = {"flops": 1e9, "efficiency": 1.0, "interconnect": 1e9, "latency": 0.0}
    kind: dict[str, Any] = {**shape, "memory_bandwidth": 1e9}

    def step(cores: int) -> Any:
        cluster = Cluster(ranks_per_host=4, cores_per_host=cores, **kind)
        found = plan(MODEL, cluster, batch=16, sequence=32, precision="fp32", simulated=1)
        return next(one for one in found.options if one.candidate == of(data=4))

    own, shared = step(4), step(2)
    assert shared.seconds == pytest.approx(2 * own.seconds)
    states = 16 * memory.parameters(MODEL)
    assert own.step.update == pytest.approx(states / 1e9)
    # Sums do not run beside backward, which needs the cores.
    assert own.step.reduction == pytest.approx(2 * 3 / 4 * 4 * memory.parameters(MODEL) / 1e9)


def test_each_precision_has_its_speed() -> None:
    speed: dict[str, Any] = {"flops": 1e9, "flops_fp32": 2e9, "efficiency": 1.0, "layer_overhead": 0.0}
    cluster = Cluster(cores_per_host=1, **speed)
    found = plan(MODEL, cluster, batch=4, sequence=32, precision=("fp32", "bf16"), simulated=1)
    seconds = {
        one.candidate.precision: one.step.forward
        for one in found.options
        if one.candidate == of(precision=one.candidate.precision)
    }
    assert seconds["bf16"] == pytest.approx(2 * seconds["fp32"])


def test_offloaded_states_are_read_and_written_by_all_ranks_of_a_host() -> None:
    cluster = Cluster(ranks_per_host=4, cores_per_host=4, disk=1e6)
    found = plan(MODEL, cluster, batch=16, sequence=32, precision="fp32", offload=DISK, simulated=1)
    one = of(data=4, sharding="zero1", offload_optimizer=True)
    option = next(each for each in found.options if each.candidate == one)
    assert option.estimate.stages[0].optimizer == 0
    assert option.step.offload == pytest.approx(2 * 8 * memory.parameters(MODEL) / 1e6)
