"""Lightning on spot machines: SIGTERM to one rank, a checkpoint, exit code 75, and the same end."""

from __future__ import annotations

import hashlib
import os
import random
import signal
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from transformers_spawn import run

from smdp import preemption
from smdp.lightning import PreemptionCallback, SmdpStrategy

pytestmark = pytest.mark.timeout(900)


class Regression(lightning.LightningModule):
    """What a step learns from depends on its number and on the rank; data does not matter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        if [str(self.global_step), str(self.global_rank)] == os.environ.get("AT", "").split():
            os.kill(os.getpid(), signal.SIGTERM)
        generator = torch.Generator().manual_seed(100 * self.global_step + self.global_rank)
        x = torch.randn(4, 8, generator=generator)
        return torch.nn.functional.mse_loss(self.layers(x), x.sum(1, keepdim=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), 0.05)


def trainer_with(callback: PreemptionCallback, **options: Any) -> lightning.Trainer:
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    return lightning.Trainer(
        accelerator="cpu", callbacks=[callback], **dict.fromkeys(silent, False), **options
    )


def train() -> list[Any]:
    size = int(os.environ.get("WORLD_SIZE", "1"))
    callback = PreemptionCallback(os.environ["KEPT"])
    strategy = SmdpStrategy() if size > 1 else "auto"
    trainer = trainer_with(callback, devices=size, strategy=strategy, max_steps=15)
    module = Regression()
    start = callback.checkpoint
    trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(4 * size, 1), 1), ckpt_path=start)
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "SIGTERM no longer ends this process"
    bits = b"".join(parameter.detach().numpy().tobytes() for parameter in module.parameters())
    return [start is not None, trainer.global_step, hashlib.sha256(bits).hexdigest()]


class Failing(Regression):
    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        super().training_step(batch, index)
        raise OSError("no more data")


def fail() -> None:
    """The exception is seen, whatever has been noted; what was, the next training hears."""

    def fit(module: lightning.LightningModule) -> None:
        callback = PreemptionCallback(os.environ["KEPT"])
        trainer = trainer_with(callback, max_steps=5)
        trainer.fit(module, torch.utils.data.DataLoader(torch.zeros(5, 1), 1))

    def mine(number: int, frame: Any) -> None: ...

    for handler, at in ((signal.SIG_DFL, ""), (mine, ""), (signal.SIG_DFL, "0 0")):
        signal.signal(signal.SIGTERM, handler)
        os.environ["AT"] = at
        with pytest.raises(OSError, match="no more data"):
            fit(Failing())
        os.environ["AT"] = ""
        for _ in range(2):
            assert signal.getsignal(signal.SIGTERM) is handler and not preemption.is_watching()
            fit(Regression())


def test_handlers_after_a_training_that_failed(tmp_path: Path) -> None:
    (output,) = run(fail, 1, env={"KEPT": str(tmp_path)}, exits={0: 75})
    assert "ranks [0] of 1 received SIGTERM" in output
    assert (tmp_path / "preempted.ckpt").exists()


@pytest.mark.parametrize("size", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_it_goes_on_to_the_same_parameters(size: int, tmp_path: Path) -> None:
    whole = run(train, size, env={"KEPT": str(tmp_path / "whole")}, timeout=600)
    kept = {"KEPT": str(tmp_path / "kept")}
    at = f"{random.randrange(12)} {random.randrange(size)}"
    outputs = run(train, size, env={**kept, "AT": at}, exits=dict.fromkeys(range(size), 75), timeout=600)
    assert len([output for output in outputs if "all ranks stop" in output]) == 1, outputs
    resumed = run(train, size, env=kept, timeout=600)
    assert [one[0] for one in whole] == [False] * size and [one[0] for one in resumed] == [True] * size
    assert [one[1:] for one in resumed] == [one[1:] for one in whole]
