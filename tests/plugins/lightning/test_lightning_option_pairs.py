"""All pairs of options of SmdpStrategy: it trains as without them, or refuses them beforehand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.plugins.precision import Precision
from option_pairs import OPTIONS, Result, check_pairs, whole
from test_lightning_sharded_optimizer import data, where
from test_lightning_sharded_parameters import Model, trainer
from transformers_spawn import run

from smdp.lightning import SmdpStrategy


class Slow(Model):
    """With steps so small that signs of tiny gradients make no difference, and gradients that fit in fp16."""

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return 0.01 * super().training_step(batch, number)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), 1e-3)


class Inside(Model):
    """Its steps call a submodule, as no hook of the module's own forward sees."""

    def validation_step(self, batch: Any, _: int) -> None:
        self.told.append(torch.nn.functional.mse_loss(self.predict_step(batch, 0), batch[1]).item())

    test_step = validation_step

    def predict_step(self, batch: Any, _: int) -> torch.Tensor:
        return self.layers(batch[0])


def fitting(**given: Any) -> Callable[[], Result]:
    SmdpStrategy(**given)

    def fit() -> Result:
        module = Slow()
        start = whole(module)
        done = trainer("pairs", given, enable_checkpointing=False, callbacks=[], accumulate_grad_batches=1)
        done.fit(module, data())
        return module.told, whole(module) - start

    return fit


def in_pairs() -> None:
    check_pairs(fitting, list(OPTIONS))


def with_masters() -> None:
    """Training continues to the same bits from a checkpoint, which has the masters."""
    ends = {}
    for precision in ("bf16", "fp16"):
        for name, more in (("whole", {}), ("sharded", {"shard_optimizer": True})):
            done = trainer(name + precision, {"precision": precision, **more})
            module = Inside()
            done.fit(module, data())
            assert {one.dtype for one in done.lightning_module.parameters()} != {torch.float32}
            ends[name] = whole(done.lightning_module)
            saved = os.path.join(where(name + precision), "step=2.ckpt")
            again = trainer("again", {"precision": precision})
            again.fit(Model(), data(), ckpt_path=saved)
            assert torch.equal(whole(again.lightning_module), ends[name])
            module.told.clear()
            for evaluate in (done.validate, done.test):
                evaluate(module, data(), verbose=False)
            half = len(module.told) // 2
            assert half and module.told[:half] == module.told[half:]
            assert {one.dtype for one in done.predict(module, data())} == {torch.float32}
        assert torch.equal(ends["sharded"], ends["whole"])


@pytest.mark.parametrize("function", [in_pairs, with_masters])
def test_options(function: Any, tmp_path: Path) -> None:
    run(function, 2, timeout=280, env={"SMDP_TEST_FOLDER": str(tmp_path)})


def test_wrong_precision() -> None:
    with pytest.raises(ValueError, match=r"SmdpStrategy: precision is 'fp8'; allowed: None, 'bf16', 'fp16'"):
        SmdpStrategy(precision="fp8")
    with pytest.raises(ValueError, match="precision='bf16' and precision_plugin cannot be used together"):
        SmdpStrategy(precision="bf16", precision_plugin=Precision())
