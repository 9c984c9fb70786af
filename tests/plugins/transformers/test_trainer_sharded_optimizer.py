"""`DataParallel(shard_optimizer=...)`: the Trainer trains, saves and resumes as without it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import language_model as lm
import model_parallel_trainers as mp
import pytest
import torch
from transformers_spawn import run

from smdp.torch import ShardedOptimizer
from smdp.transformers import DataParallel, ModelParallel

CHECKPOINTS = "SMDP_TEST_CHECKPOINTS"


def trainer(shard_optimizer: bool | str, name: str, **options: Any) -> Any:
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
    args = lm.arguments(4, **{**defaults, **options})
    return lm.trainer(args, plugins=[DataParallel(shard_optimizer=shard_optimizer)])


def told(done: Any) -> list[Any]:
    """What must be the same with and without sharding."""
    names = ("loss", "grad_norm", "eval_loss", "learning_rate")
    entries = [[entry.get(name) for name in names] for entry in done.state.log_history[:-1]]
    return [repr(entries), lm.weights_hash(done.model)]  # nan equals no nan


def state_bytes(done: Any) -> int:
    states = done.optimizer.state.values()
    return sum(value.nbytes for state in states for name, value in state.items() if name != "step")


def saved(name: str, step: int = 2) -> str:
    return os.path.join(os.environ[CHECKPOINTS], name, "out", f"checkpoint-{step}")


def same_files() -> bool:
    whole, sharded = (
        torch.load(os.path.join(saved(name), "optimizer.pt"), weights_only=True)
        for name in ("whole", "sharded")
    )
    assert whole["state"].keys() == sharded["state"].keys()
    states = [(state, sharded["state"][number]) for number, state in whole["state"].items()]
    assert all(mine.keys() == theirs.keys() for mine, theirs in states)
    assert all(torch.equal(mine[name], theirs[name]) for mine, theirs in states for name in mine)
    return bool(whole["param_groups"] == sharded["param_groups"])


def on_two_ranks() -> Any:
    whole, sharded = trainer(False, "whole"), trainer(True, "sharded")
    for one in (whole, sharded):
        one.train()
    assert isinstance(sharded.optimizer.optimizer, ShardedOptimizer)
    assert told(sharded) == told(whole)
    assert state_bytes(sharded) <= 0.51 * state_bytes(whole)
    assert same_files()

    expected = lm.weights_hash(whole.model)
    for shard_optimizer, name in ((True, "whole"), (False, "sharded"), (True, "sharded")):
        again = trainer(shard_optimizer, "again", save_strategy="no")
        again.train(resume_from_checkpoint=saved(name))
        assert lm.weights_hash(again.model) == expected, (shard_optimizer, name)

    ends = []
    for shard_optimizer in (False, True):
        # Accelerate asks for fp16 on accelerators only, and a fused optimizer hides skipped steps from it.
        options = {"max_grad_norm": 0, "optim": "adamw_torch", "load_best_model_at_end": True}
        scaled = trainer(shard_optimizer, "scaled", greater_is_better=True, **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-67)
        scaled.accelerator.scaler = scaler
        scaled.train()
        assert scaler.get_scale() == 2.0**60  # it skipped the first step
        assert scaled.state.best_global_step == 2  # not the last
        ends.append(told(scaled))
        scaled.train()  # starts again with the optimizer that it has
        ends[-1] += told(scaled)
    assert ends[0] == ends[1]

    refused = trainer(True, "refused")
    refused.optimizer = torch.optim.LBFGS(refused.model.parameters())
    before = lm.weights_hash(refused.model)
    with pytest.raises(ValueError, match=r"\[smdp\] ShardedOptimizer: .*LBFGS"):
        refused.train()
    assert refused.state.global_step == 0 and lm.weights_hash(refused.model) == before


def on_one_rank() -> Any:
    """Goes on from the checkpoints of two ranks."""
    ends = []
    for name in ("whole", "sharded"):
        again = trainer(True, "alone")
        again.train(resume_from_checkpoint=saved(name))
        assert not isinstance(again.optimizer.optimizer, ShardedOptimizer)
        ends.append(lm.weights_hash(again.model))
    assert ends[0] == ends[1]
    with pytest.raises(ValueError, match="shard_optimizer and auto_find_batch_size cannot be used together"):
        trainer(True, "refused", auto_find_batch_size=True)


def test_trains_and_resumes_like_an_unsharded_optimizer(tmp_path: Path) -> None:
    folder = {CHECKPOINTS: str(tmp_path)}
    run(on_two_ranks, 2, env=folder)
    run(on_one_rank, 1, env=folder)


def in_stages() -> None:
    """Two replicas of two stages, whose checkpoints continue with and without sharding."""
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "max_grad_norm": 0}
    made = {}
    for is_sharded in (False, True):
        args = mp.arguments(f"staged {is_sharded}", **options)
        made[is_sharded] = mp.trainer(args, plugins=mp.plugins(shard_optimizer=is_sharded))
        made[is_sharded].train()
    assert lm.losses(made[True]) == lm.losses(made[False])
    assert lm.weights_hash(made[True].model_wrapped) == lm.weights_hash(made[False].model_wrapped)
    assert state_bytes(made[True]) <= 0.52 * state_bytes(made[False])
    expected = lm.weights_hash(made[True].model_wrapped)
    for saving in (False, True):
        again = mp.trainer(
            mp.arguments("again", **{**options, "save_strategy": "no"}),
            plugins=mp.plugins(shard_optimizer=not saving),
        )
        again.train(resume_from_checkpoint=os.path.join(made[saving].args.output_dir, "checkpoint-2"))
        assert lm.weights_hash(again.model_wrapped) == expected, saving
    with pytest.raises(ValueError, match="pass shard_optimizer to ModelParallel"):
        mp.trainer(args, plugins=[DataParallel(shard_optimizer=True), ModelParallel(2, 4)])


def test_replicas_of_stages_train_and_resume_alike(tmp_path: Path) -> None:
    run(in_stages, 4, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def test_unknown_scope() -> None:
    with pytest.raises(ValueError, match=r"DataParallel: shard_optimizer is 'rack'; allowed: True, False, "):
        DataParallel(shard_optimizer="rack")
    with pytest.raises(ValueError, match=r"DataParallel: shard_optimizer is None; allowed: True, False, "):
        DataParallel(shard_optimizer=None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"DataParallel: shard_optimizer: offload = 3 is not valid"):
        DataParallel(shard_optimizer={"offload": 3})
