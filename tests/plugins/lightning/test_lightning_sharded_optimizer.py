"""`SmdpStrategy(shard_optimizer=...)`: Lightning trains, saves and resumes as without it."""

from __future__ import annotations

import hashlib
import os
from typing import Any

import lightning
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.plugins import MixedPrecision
from transformers_spawn import run

from smdp.lightning import SmdpStrategy
from smdp.torch import ShardedOptimizer


class Regression(lightning.LightningModule):
    """With two groups of parameters, and a schedule that changes after each step."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 257), torch.nn.Tanh(), torch.nn.Linear(257, 1))
        self.norms: list[float] = []

    def training_step(self, batch: Any, _: int) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms.append(torch.nn.utils.get_total_norm([one.grad for one in self.parameters()]).item())

    def configure_optimizers(self) -> Any:
        first, last = (list(self.layers[place].parameters()) for place in (0, 2))
        groups = [{"params": first, "weight_decay": 0.5}, {"params": last, "lr": 0.02}]
        optimizer = torch.optim.AdamW(groups, 0.05)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return [optimizer], [{"scheduler": schedule, "interval": "step"}]


class TwoOptimizers(Regression):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.layers[place].parameters(), 0.1) for place in (0, 2)]


class WholeSteps(Regression):
    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.parameters())


def data() -> torch.utils.data.DataLoader[Any]:
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    x = torch.randn(32, 8)  # two steps: Lightning resumes at the beginning of an epoch
    rows = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    order = torch.utils.data.DistributedSampler(rows, 2, rank, shuffle=False)
    return torch.utils.data.DataLoader(rows, 4, sampler=order)


def trainer(shard_optimizer: bool | str, name: str, **options: Any) -> lightning.Trainer:
    defaults = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    saving = ModelCheckpoint(where(name), "{step}", every_n_train_steps=2, save_top_k=-1)
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=SmdpStrategy(shard_optimizer=shard_optimizer),
        max_steps=4,
        callbacks=[saving],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **{**defaults, **options},
    )


def where(name: str) -> str:
    return os.path.join(os.environ["SMDP_TEST_FOLDER"], name)


def told(done: lightning.Trainer) -> list[Any]:
    module = done.lightning_module
    bits = b"".join(one.detach().numpy().tobytes() for one in module.parameters())
    rates = [group["lr"] for group in done.optimizers[0].param_groups]
    return [module.norms[-2:], rates, hashlib.sha256(bits).hexdigest()]


def fitted() -> None:
    ends: dict[str, Any] = {}
    for name, shard_optimizer in (("whole", False), ("sharded", True), ("host", "host")):
        done = trainer(shard_optimizer, name)
        done.fit(Regression(), data())
        assert isinstance(done.optimizers[0], ShardedOptimizer) == bool(shard_optimizer)
        ends[name] = told(done)
        assert ends[name] == ends["whole"]
    module = done.lightning_module
    states = done.optimizers[0].state.values()
    held = sum(value.nbytes for state in states for key, value in state.items() if key != "step")
    assert held <= 0.51 * 8 * sum(one.numel() for one in module.parameters()), held

    for saved, shard_optimizer in (("whole", True), ("sharded", False), ("sharded", "host")):
        done = trainer(shard_optimizer, "again")
        done.fit(Regression(), data(), ckpt_path=os.path.join(where(saved), "step=2.ckpt"))
        assert told(done) == ends["whole"], (saved, shard_optimizer)

    whole, sharded = (torch.load(os.path.join(where(name), "step=2.ckpt")) for name in ("whole", "sharded"))
    assert repr(whole["optimizer_states"]) == repr(sharded["optimizer_states"])

    done.fit_loop.epoch_loop.max_steps = 6
    done.fit(module, data())  # goes on with a new wrapper and a new optimizer
    assert done.global_step == 6

    scaled = []
    for shard_optimizer in (False, True):
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, backoff_factor=2.0**-120)
        done = trainer(shard_optimizer, "scaled", plugins=[MixedPrecision("16-mixed", "cpu", scaler)])
        done.fit(Regression(), data())
        assert scaler.get_scale() == 2.0**7  # it skipped the first step
        scaled.append(repr(told(done)))
    assert scaled[0] == scaled[1]

    for refused, words in (
        (
            TwoOptimizers(),
            r"returned 2 optimizers \(SGD, SGD\), but shard_optimizer and precision support one",
        ),
        (WholeSteps(), r"\[smdp\] ShardedOptimizer: .*LBFGS"),
    ):
        by_hand = {"accumulate_grad_batches": 1, "gradient_clip_val": None}
        options = {} if refused.automatic_optimization else by_hand
        with pytest.raises(ValueError, match=words):
            trainer(True, "refused", **options).fit(refused, data())


def test_trains_and_resumes_like_an_unsharded_optimizer() -> None:
    run(fitted, 2)


def test_unknown_scope() -> None:
    with pytest.raises(ValueError, match=r"SmdpStrategy: shard_optimizer is 'rack'; allowed: True, False, "):
        SmdpStrategy(shard_optimizer="rack")
    with pytest.raises(ValueError, match=r"=True and shard_optimizer=\{\} cannot be used together"):
        SmdpStrategy(shard_optimizer={}, shard_parameters=True)
