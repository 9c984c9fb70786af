"""The Trainer on GPUs; two processes may share one."""

from __future__ import annotations

import os
from typing import Any

import language_model as lm
import pytest
import torch
import torch.distributed as dist
from transformers_spawn import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def trained() -> Any:
    if "LOCAL_RANK" in os.environ:
        os.environ["LOCAL_RANK"] = str(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    trainer = lm.trainer(lm.arguments(use_cpu=False, ddp_backend="smdp"))
    trainer.train()
    assert trainer.args.device.type == "cuda"
    if dist.is_initialized():
        assert lm.is_over_smdp()
        logged = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert all(entry["smdp_communication_ms"] > 0 < entry["smdp_gradient_mb"] for entry in logged)
    return lm.losses(trainer)


def test_losses_of_one_process() -> None:
    # With several, the Trainer of one process would make torch.nn.DataParallel.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0,1").split(",")
    (alone,) = run(trained, 1, env={"CUDA_VISIBLE_DEVICES": visible[0]})
    first, second = run(trained, 2, env={"CUDA_VISIBLE_DEVICES": ",".join(visible[:2])})
    assert first == second == pytest.approx(alone, abs=1e-4)
