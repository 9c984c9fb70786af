"""`SmdpStrategy(shard_parameters=...)`: Lightning trains, evaluates, saves and resumes as without it."""

from __future__ import annotations

import os
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from test_lightning_sharded_optimizer import Regression, data, where
from torch.distributed.tensor import DTensor
from transformers_spawn import run

from smdp.lightning import SmdpStrategy
from smdp.torch import ShardedDataParallel


class Model(Regression):
    """With a validation step that calls the module."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[float] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        loss = torch.nn.functional.mse_loss(self(batch[0]), batch[1])
        self.told.append(loss.item())
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.told.append(torch.nn.functional.mse_loss(self(batch[0]), batch[1]).item())

    test_step = validation_step

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        pass


def trainer(name: str, strategy: dict[str, Any], **options: Any) -> lightning.Trainer:
    saving = ModelCheckpoint(where(name), "{step}", every_n_train_steps=2, save_top_k=-1)
    defaults = {
        "accumulate_grad_batches": 2,
        "gradient_clip_val": 0.5,
        "num_sanity_val_steps": 0,
        "callbacks": [saving],
    }
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=SmdpStrategy(**strategy),
        max_steps=4,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **{**defaults, **options},
    )


def values(done: lightning.Trainer) -> list[float]:
    parts = []
    for one in done.lightning_module.parameters():
        parts.append((one.full_tensor() if isinstance(one, DTensor) else one).detach().flatten())
    return torch.cat(parts).tolist()


def fitted() -> None:
    ends = {}
    for algorithm in ("norm", "value"):
        for name, strategy in (("whole", {}), ("sharded", {"shard_parameters": True, "recompute": "each"})):
            done = trainer(name + algorithm, strategy, gradient_clip_algorithm=algorithm)
            module = Model()
            done.fit(module, data(), data())
            done.test(module, data(), verbose=False)
            assert isinstance(done.strategy.model, ShardedDataParallel) == (name == "sharded")
            ends[name] = module.told, values(done)
        assert ends["sharded"][0] == pytest.approx(ends["whole"][0], rel=1e-4), algorithm
        assert ends["sharded"][1] == pytest.approx(ends["whole"][1], abs=1e-5), algorithm

    for saved, strategy in (("wholevalue", {"shard_parameters": 2}), ("shardedvalue", {})):
        again = trainer("again", strategy, gradient_clip_algorithm="value")
        again.fit(Model(), data(), ckpt_path=os.path.join(where(saved), "step=2.ckpt"))
        assert values(again) == pytest.approx(ends["whole"][1], abs=1e-5), saved

    done.fit_loop.epoch_loop.max_steps = 6
    done.fit(module, data())
    assert done.global_step == 6
    scaling = {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}
    sharded, lowered = {"shard_parameters": True}, {"precision": "bf16"}
    for strategy, options, words in (
        (sharded, scaling, "and precision='16-mixed' cannot be used together"),
        (sharded, {"precision": "bf16-true"}, "and precision='bf16-true' .* without masters. Use"),
        (lowered, {"precision": "bf16-mixed"}, "='bf16' and the Trainer's precision='bf16-mixed' cannot"),
        (
            {**sharded, **lowered},
            {"precision": "bf16-true"},
            "='bf16' and the Trainer's precision='bf16-true'",
        ),
    ):
        unchanged = Model()
        with pytest.raises(ValueError, match=words):
            trainer("refused", strategy, **options).fit(unchanged, data())
        assert {one.dtype for one in unchanged.parameters()} == {torch.float32}
    for strategy in ({}, {"shard_parameters": True}):
        with pytest.raises(
            ValueError, match=r"the model is sharded by an earlier Trainer.*load its checkpoint"
        ):
            trainer("other", strategy).test(module, data(), verbose=False)


def test_trains_and_resumes_like_whole_parameters() -> None:
    run(fitted, 2)
