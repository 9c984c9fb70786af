"""`recompute`, `offload` and `precision` of the Trainer's plugins and of Accelerate."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import language_model as lm
import model_parallel_trainers as mp
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from transformers import TrainerCallback
from transformers_spawn import run

import smdp.accelerate
from smdp.torch import MixedPrecision
from smdp.transformers import DataParallel, ModelParallel

pytestmark = pytest.mark.timeout(240)

SAVING = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}


def trained(plugin: Any, folder: str, resumed: str | None = None, **options: Any) -> Any:
    done = mp.trainer(mp.arguments(folder, **{**SAVING, **options}), plugins=[plugin])
    done.train(resume_from_checkpoint=resumed)
    return done


def result(done: Any) -> list[Any]:
    return [mp.numbers(done), lm.weights_hash(done.model_wrapped)]


class MeasuresAll(TrainerCallback):
    """Looks at the gradients between the batches of a step."""

    norms: ClassVar[list[float]] = []

    def on_substep_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        optimizer = given["optimizer"].optimizer
        self.norms.append(optimizer.clip_master_grads(1e9))


def disk() -> str:
    folder = Path(os.environ["SMDP_TEST_FOLDER"], "scratch")
    folder.mkdir(exist_ok=True)
    return f"disk:{folder}"


def keeps_the_bits(make: Any) -> None:
    plain = trained(make(), "plain")
    assert result(trained(make(recompute="each", offload=disk()), "small")) == result(plain)


def trains_in_16_bits(make: Any) -> None:
    """The loss is near that in 32 bits, sharding changes no bit, and a checkpoint has the masters."""
    plain = trained(make(), "plain", max_grad_norm=0)
    for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        low = trained(make(precision=precision), precision, max_grad_norm=0)
        assert isinstance(low.optimizer.optimizer, MixedPrecision)
        assert {one.dtype for one in low.model_wrapped.parameters()} == {dtype}
        assert lm.losses(low) == pytest.approx(lm.losses(plain), rel=0.02), (lm.losses(low), lm.losses(plain))
        expected = lm.weights_hash(low.model_wrapped)
        if mp.size() > mp.stages():
            sharded = trained(make(precision=precision, shard_optimizer=True), "sharded", max_grad_norm=0)
            assert lm.weights_hash(sharded.model_wrapped) == expected
        saved = os.path.join(low.args.output_dir, "checkpoint-2")
        again = trained(make(precision=precision), "again", saved, max_grad_norm=0, save_strategy="no")
        assert lm.weights_hash(again.model_wrapped) == expected
    if mp.stages() > 1:
        measured = mp.trainer(
            mp.arguments("measured", **{**SAVING, "max_grad_norm": 0, "gradient_accumulation_steps": 2}),
            plugins=[make(precision="fp16")],
            callbacks=[MeasuresAll()],
        )
        measured.train()
        assert len(MeasuresAll.norms) == SAVING["max_steps"] and all(MeasuresAll.norms)
    clipped = trained(make(precision="bf16"), "clipped", max_grad_norm=0.01, save_strategy="no")
    assert mp.numbers(clipped)[1][0] == pytest.approx(mp.numbers(plain)[1][0], rel=0.02)


def in_data_parallel() -> None:
    os.environ["STAGES"] = "1"
    keeps_the_bits(DataParallel)
    trains_in_16_bits(DataParallel)


def in_stages() -> None:
    def make(**options: Any) -> ModelParallel:
        return ModelParallel(mp.stages(), mp.MICROBATCHES, **options)

    keeps_the_bits(make)
    trains_in_16_bits(make)


def with_accelerate() -> None:
    weights = []
    for options in ({}, {"recompute": "each"}, {"precision": "bf16"}, {"precision": "bf16"}):
        accelerator = Accelerator(cpu=True)
        smdp.accelerate.DataParallel(**options).apply(accelerator)
        torch.manual_seed(0)
        plain = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(3)))
        model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), lr=0.1))
        for _ in range(3):
            accelerator.backward(model(torch.ones(2, 8)).square().sum())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        weights.append(torch.cat([one.detach().float().flatten() for one in model.parameters()]))
    with pytest.raises(ValueError, match="precision='bf16' supports one optimizer,"):
        accelerator.prepare(torch.optim.SGD(model.parameters(), lr=0.1))
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[2], weights[3])
    assert torch.allclose(weights[2], weights[0], atol=0.05) and not torch.equal(weights[2], weights[0])


def test_data_parallel(tmp_path: Path) -> None:
    run(in_data_parallel, 2, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def test_one_process(tmp_path: Path) -> None:
    run(in_data_parallel, 1, env={"SMDP_TEST_FOLDER": str(tmp_path)})
    run(with_accelerate, 1)


def test_model_parallel(tmp_path: Path) -> None:
    run(in_stages, 2, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def test_wrong_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMDP_TEST_FOLDER", str(tmp_path))
    with pytest.raises(ValueError, match=r"DataParallel: precision is 'fp8'; allowed: None, 'bf16', 'fp16'"):
        DataParallel(precision="fp8")
    with pytest.raises(ValueError, match=r"recompute = 'all' is not valid; allowed: 'each'"):
        ModelParallel(recompute="all")
    with pytest.raises(ValueError, match=r"offload = 'scratch' is not valid; allowed: \"disk:/DIRECTORY\""):
        DataParallel(offload="scratch")
    with pytest.raises(ValueError, match=r"recompute='each' and activation checkpoints of the training"):
        mp.trainer(lm.arguments(4, activation_checkpointing=True), plugins=[DataParallel(recompute="each")])
    with pytest.raises(ValueError, match=r"precision='bf16' keeps .* mixed_precision='bf16' converts"):
        mp.trainer(lm.arguments(4, bf16=True), plugins=[DataParallel(precision="bf16")])
