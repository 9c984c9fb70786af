"""Checkpoints that a killed run has left half written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import language_model as lm
import pytest
from transformers_spawn import run

from smdp.transformers import DataParallel


def cut(name: str) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        os.truncate(checkpoint / name, (checkpoint / name).stat().st_size // 2)

    return damage


def without(name: str) -> Callable[[Path], None]:
    def damage(checkpoint: Path) -> None:
        (checkpoint / name).unlink()

    return damage


def without_metadata(checkpoint: Path) -> None:
    (checkpoint / "model_parallel").mkdir()


WAYS = {
    "trainer_state.json is missing": without("trainer_state.json"),
    "trainer_state.json is truncated": cut("trainer_state.json"),
    "model.safetensors is truncated": cut("model.safetensors"),
    "optimizer.pt is truncated": cut("optimizer.pt"),
    "scheduler.pt is truncated": cut("scheduler.pt"),
    "rng_state_1.pth is truncated": cut("rng_state_1.pth"),
    "model_parallel/.metadata is missing": without_metadata,
}


def trainer(**options: Any) -> Any:
    args = lm.arguments(max_steps=6, save_strategy="steps", save_steps=2, **options)
    return lm.trainer(args, plugins=[DataParallel()])


def resumed() -> Any:
    """The newest whole one is taken, to the same end; the damaged one is refused by name."""
    import torch.distributed as dist

    whole = trainer()
    whole.train()
    expected = lm.weights_hash(whole.model)
    folder = Path(lm.folder())
    newest, kept = folder / "checkpoint-6", folder / "kept"
    is_first = os.environ["RANK"] == "0"
    if is_first:
        shutil.copytree(newest, kept)
        (folder / "checkpoint-unfinished").mkdir()  # none of the Trainer's
    steps = []
    for told, damage in WAYS.items():
        if is_first:
            shutil.rmtree(newest)
            shutil.copytree(kept, newest)
            damage(newest)
        dist.barrier()
        again = trainer()
        with pytest.raises(ValueError, match=f"checkpoint-6 is incomplete: {told}"):
            again.train(resume_from_checkpoint=str(newest))
        again.train(resume_from_checkpoint=True)
        steps.append(len(lm.losses(again)) - 4)  # two are new
        assert lm.weights_hash(again.model) == expected
        dist.barrier()
    if is_first:
        for step in (2, 4):
            without("trainer_state.json")(folder / f"checkpoint-{step}")
        without("trainer_state.json")(newest)
    dist.barrier()
    with pytest.raises(
        ValueError, match=r"is complete: checkpoint-6: trainer_state.json is missing; checkpoint-4: "
    ):
        trainer().train(resume_from_checkpoint=True)
    return steps


@pytest.mark.timeout(300)
def test_half_written_checkpoints() -> None:
    assert run(resumed, 2, timeout=280) == [[2] * len(WAYS)] * 2


def compressed() -> Any:
    """What is kept for later steps is in the checkpoint; without a rank's file it is left out on all."""
    import torch.distributed as dist

    def made() -> Any:
        args = lm.arguments(max_steps=6, save_strategy="steps", save_steps=3, learning_rate=0.1, optim="sgd")
        wire = os.environ["WIRE"]
        plugin = DataParallel(wire, topk_momentum=0.5 if wire == "topk" else 0.0)
        return lm.trainer(args, plugins=[plugin])

    whole = made()
    whole.train()
    found = []
    for is_there in (True, False):
        if not is_there and os.environ["RANK"] == "1":
            Path(lm.folder(), "checkpoint-3", "gradient_residuals_1.pth").unlink()
        dist.barrier()
        again = made()
        again.train(resume_from_checkpoint=os.path.join(lm.folder(), "checkpoint-3"))
        found.append(lm.weights_hash(again.model) == lm.weights_hash(whole.model))
    return found


@pytest.mark.parametrize("wire", ["int8", pytest.param("topk", marks=pytest.mark.slow)])
def test_residuals_are_saved(wire: str) -> None:
    assert run(compressed, 2, hosts=[0, 1], env={"WIRE": wire}) == [[True, False]] * 2


def of_shards() -> Any:
    alone = trainer()
    alone.train()
    folder = Path(lm.folder(), "checkpoint-6")
    (folder / "model.safetensors").unlink()
    alone.model.save_pretrained(folder, max_shard_size="20KB")
    trainer().train(resume_from_checkpoint=str(folder))
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 2
    shards[1].unlink()
    with pytest.raises(ValueError, match=f"is incomplete: {shards[1].name} is missing"):
        trainer().train(resume_from_checkpoint=str(folder))
    return True


def test_missing_shard() -> None:
    assert run(of_shards, 1) == [True]
