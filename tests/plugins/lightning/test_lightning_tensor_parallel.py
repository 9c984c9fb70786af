"""A LightningModule whose configure_model() divides its model trains like one process."""

from __future__ import annotations

import copy
import os
from typing import Any

import lightning
import pytest
import torch
from torch import nn
from transformers_spawn import run

import smdp.torch
from smdp.lightning import SmdpStrategy

PLAN = {"0": "colwise", "2": "rowwise"}


def data() -> torch.utils.data.DataLoader[Any]:
    inputs = torch.randn(16, 8, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(inputs, batch_size=4)


class Divided(lightning.LightningModule):
    def __init__(self, degree: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.LayerNorm(8))
        self.whole, self.degree = copy.deepcopy(self.layers), degree
        self.whole.requires_grad_(False)
        self.norms: list[float] = []

    def configure_model(self) -> None:
        smdp.torch.tensor_parallel(self.layers, self.degree, PLAN)

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self.layers(batch).square().sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.layers.parameters(), 0.05)


def fit(**options: Any) -> Divided:
    module = Divided(2)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=SmdpStrategy(),
        max_epochs=1,
        gradient_clip_val=0.5,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=os.environ["SMDP_TEST_FOLDER"],
        **options,
    )
    trainer.fit(module, data())
    with pytest.raises(RuntimeError, match=r"only one rank's slices .*checkpoint.save\(path, model\)"):
        trainer.save_checkpoint(os.environ["SMDP_TEST_FOLDER"] + "/last.ckpt")
    return module


def train() -> float:
    with pytest.raises(RuntimeError, match="enable_checkpointing=False"):
        fit()
    module = fit(enable_checkpointing=False)
    alone = module.whole.requires_grad_()
    optimizer = torch.optim.SGD(alone.parameters(), 0.05)
    # Lightning shuffles; two ranks that share a model read all rows.
    sampler = torch.utils.data.DistributedSampler(range(16), 1, 0, seed=0)
    for batch in torch.utils.data.DataLoader(data().dataset, batch_size=4, sampler=sampler):
        optimizer.zero_grad()
        alone(batch).square().sum().backward()
        nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        optimizer.step()
    from smdp.torch.mesh.cuts import cut_of

    far = 0.0
    for mine, whole in zip(module.layers.parameters(), alone.parameters(), strict=True):
        cut = cut_of(mine)
        part = whole if cut is None or cut.slices is None else cut.slices.take(whole)
        far = max(far, (mine - part).abs().max().item())
    return far


def test_a_divided_model_trains_like_one_process(tmp_path: Any) -> None:
    assert max(run(train, 2, env={"SMDP_TEST_FOLDER": str(tmp_path)})) < 1e-6
