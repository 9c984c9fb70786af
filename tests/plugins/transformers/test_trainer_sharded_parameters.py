"""`DataParallel(shard_parameters=...)`: the Trainer trains, saves and resumes as without it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import language_model as lm
import pytest
import torch
from torch.distributed.tensor import DTensor
from transformers import GPT2LMHeadModel
from transformers_spawn import run

from smdp.torch import ShardedDataParallel, delayed_initialization
from smdp.transformers import DataParallel, ModelParallel

CHECKPOINTS = "SMDP_TEST_CHECKPOINTS"


def trainer(
    name: str,
    plugin: dict[str, Any] | None = None,
    model: Any = None,
    optimizers: Any = (None, None),
    **options: Any,
) -> Any:
    """A Trainer that has its checkpoints in a folder of this name."""
    os.environ["SMDP_TEST_FOLDER"] = os.path.join(os.environ[CHECKPOINTS], name)
    defaults = {
        "gradient_accumulation_steps": 2,
        "max_grad_norm": 0.5,
        "weight_decay": 0.1,
        "max_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
    }
    args = lm.arguments(8, **{**defaults, **options})
    made = {} if model is None else {"model": model, "optimizers": optimizers}
    return lm.trainer(args, plugins=[DataParallel(**(plugin or {}))], **made)


def saved(name: str, step: int = 2) -> str:
    return os.path.join(os.environ[CHECKPOINTS], name, "out", f"checkpoint-{step}")


def numbers(done: Any) -> list[float]:
    names = ("loss", "grad_norm", "eval_loss", "learning_rate")
    return [float(entry[name]) for entry in done.state.log_history[:-1] for name in names if name in entry]


def weights(done: Any) -> dict[str, torch.Tensor]:
    state = done.model.state_dict()
    return {key: one.full_tensor() if isinstance(one, DTensor) else one for key, one in state.items()}


def near(values: Any, others: Any, tolerance: float = 1e-5) -> bool:
    assert values.keys() == others.keys()
    return all(torch.allclose(one, others[name], atol=tolerance) for name, one in values.items())


def same(done: Any, other: Any) -> None:
    assert numbers(done) == pytest.approx(numbers(other), rel=1e-5)
    assert near(weights(done), weights(other))


def bytes_of_state(done: Any) -> int:
    values = [one for state in done.optimizer.state.values() for one in state.values()]
    return sum(one.to_local().nbytes for one in values if isinstance(one, DTensor))


def on_two_ranks() -> None:
    whole = trainer("whole")
    whole.train()
    sharded = trainer("sharded", {"shard_parameters": True, "recompute": "each"})
    sharded.train()
    assert isinstance(sharded.model_wrapped, ShardedDataParallel)
    same(sharded, whole)
    assert bytes_of_state(sharded) <= 0.51 * 8 * sum(one.numel() for one in whole.model.parameters())
    read = GPT2LMHeadModel.from_pretrained(saved("sharded", 4))
    assert near(read.state_dict(), weights(whole)) and read.config.architectures == ["GPT2LMHeadModel"]
    states = [torch.load(os.path.join(saved(name), "optimizer.pt")) for name in ("whole", "sharded")]
    assert states[0]["param_groups"] == states[1]["param_groups"]
    for number, state in states[0]["state"].items():
        assert near(state, states[1]["state"][number]), number

    for plugin, name in (
        ({"shard_parameters": 2}, "whole"),
        ({}, "sharded"),
        ({"shard_parameters": 1}, "sharded"),
    ):
        again = trainer("again", plugin, save_strategy="no")
        again.train(resume_from_checkpoint=saved(name))
        assert near(weights(again), weights(whole)), (plugin, name)

    ends = []
    for plugin in ({}, {"shard_parameters": True}):
        model = lm.model()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        best = {"load_best_model_at_end": True, "greater_is_better": True, "max_grad_norm": 0}
        best = trainer("best", plugin, model, optimizers=(optimizer, None), bf16=True, use_cpu=True, **best)
        best.evaluate()
        best.train()
        assert best.state.best_global_step == 2  # not the last
        ends.append(best.evaluate()["eval_loss"])
        best.train()  # goes on with the optimizer that it has
        best.save_model()
        torch.distributed.barrier()  # rank 0 has written
        read = GPT2LMHeadModel.from_pretrained(best.args.output_dir)
        assert near(read.state_dict(), weights(best), 0)
        ends += numbers(best)
    assert ends[: len(ends) // 2] == pytest.approx(ends[len(ends) // 2 :], rel=2e-2)

    with delayed_initialization():
        unmade = lm.model()
    made = trainer("unmade", {"shard_parameters": True}, unmade)
    made.evaluate()
    made.train()
    assert near(weights(made), weights(whole))
    with delayed_initialization():
        unmade = lm.model()
    made = trainer("again", {"shard_parameters": True}, unmade, save_strategy="no")
    made.train(resume_from_checkpoint=saved("whole"))
    assert near(weights(made), weights(whole))

    low = trainer("low", {"shard_parameters": True, "precision": "bf16"}, save_strategy="no")
    low.train()
    assert numbers(low) == pytest.approx(numbers(whole), rel=0.02)
    assert {one.dtype for one in low.model.parameters()} == {torch.float32}


def test_trains_and_resumes_like_whole_parameters(tmp_path: Path) -> None:
    run(on_two_ranks, 2, env={CHECKPOINTS: str(tmp_path)})


def test_not_with_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMDP_TEST_FOLDER", str(tmp_path))
    for given, words in (
        ({"shard_parameters": True}, "of its own stages only; pass shard_optimizer to ModelParallel"),
        ({"recompute": "each", "precision": "bf16"}, "pass recompute, precision to ModelParallel"),
        (
            {"recompute": "each", "shard_parameters": True, "algorithm": "ring"},
            "pass recompute to ModelParallel; .* in place of shard_parameters; .* not support algorithm",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            lm.trainer(plugins=[DataParallel(**given), ModelParallel()])


def test_values_of_a_mapping() -> None:
    for name, value, allowed in (
        ("degree", "2", "an integer of at least 1, or None"),
        ("persistence_threshold", -1, "a number of elements of at least 0"),
        ("max_live_parameters", True, "a number of elements of at least 0"),
        ("reshard_after_forward", 2, "True or False"),
    ):
        words = re.escape(f"DataParallel: {name} of shard_parameters is {value!r}; allowed: {allowed}.")
        with pytest.raises(ValueError, match=words):
            DataParallel(shard_parameters={name: value})
    valid = {"degree": None, "max_live_parameters": 1e9, "reshard_after_forward": False}
    assert DataParallel(shard_parameters=valid).changed == ["shard_parameters"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"auto_find_batch_size": True}, "auto_find_batch_size: shards stay with the model"),
        ({"torch_compile": True}, "torch_compile: graphs of the model would use"),
        ({"ddp_bucket_cap_mb": 4}, "ddp_bucket_cap_mb: gradients are sent unit by unit"),
        ({"bf16_full_eval": True}, "bf16_full_eval: shards keep their dtype"),
    ],
)
def test_refused_training_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: Any, words: str
) -> None:
    monkeypatch.setenv(CHECKPOINTS, str(tmp_path))
    monkeypatch.setenv("SMDP_TEST_FOLDER", str(tmp_path))
    with pytest.raises(ValueError, match=words):
        trainer("refused", {"shard_parameters": True}, **options)
