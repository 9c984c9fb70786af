"""What the Trainer logs of smdp."""

from __future__ import annotations

import os
import time
from typing import Any

import language_model as lm
import pytest
import torch
import transformers
from transformers_spawn import run

import smdp
from smdp.accelerate import wrapped_models
from smdp.transformers import DataParallel, ModelParallel

MEGABYTES = 4e-6 * sum(parameter.numel() for parameter in lm.model().parameters())
NUMBERS = ("communication_ms", "exposed_ms", "gradient_mb", "input_ms")


class Slow(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Takes 5 ms for each row."""

    def __len__(self) -> int:
        return 160

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(5e-3)
        return lm.rows(1, index)[0]


def reported() -> Any:
    os.environ["TENSORBOARD_LOGGING_DIR"] = folder = os.path.join(os.environ["SMDP_TEST_FOLDER"], "events")
    # Evaluations wait for 0.4 s each, which is none of training's time.
    often = {"eval_strategy": "steps", "eval_steps": 1, "per_device_eval_batch_size": 40}
    args = lm.arguments(max_steps=6, logging_steps=3, report_to=["tensorboard"], **often)
    trainer = lm.trainer(args, train_dataset=Slow(), eval_dataset=Slow())
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    if trainer.is_world_process_zero():
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(folder)
        events.Reload()
        for name in NUMBERS:
            shown = [event.value for event in events.Scalars(f"train/smdp_{name}")]
            assert shown == pytest.approx([entry[f"smdp_{name}"] for entry in entries])
    return [[entry[f"smdp_{name}"] for name in NUMBERS] for entry in entries]


def test_numbers_in_the_log() -> None:
    pytest.importorskip("tensorboard")
    for entries in run(reported, 2):
        assert len(entries) == 2
        for communication, exposed, size, wait in entries:
            assert size == pytest.approx(MEGABYTES)
            assert exposed > 0 and 0 < communication < 1e4
            assert 15 < wait < 300  # 4 rows; some come while a step runs


TorchsClass = torch.nn.parallel.DistributedDataParallel


class OnADevice(wrapped_models.DistributedDataParallel):
    """What smdp's class is where the module lies on a GPU: torch's reducer is at work."""

    def __init__(self, *args: Any, **options: Any) -> None:
        def init(ddp: Any, *given: Any, **named: Any) -> None:
            original(ddp, *given, **named)
            ddp.device_type = "a device"

        original, TorchsClass.__init__ = TorchsClass.__init__, init
        try:
            super().__init__(*args, **options)
        finally:
            TorchsClass.__init__ = original


class Listening(transformers.TrainerCallback):
    """As W&B and the others are told."""

    def __init__(self) -> None:
        self.told: list[dict[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.told.append(dict(logs))


def over_torchs_reducer() -> Any:
    wrapped_models.DistributedDataParallel = OnADevice
    args = lm.arguments(max_steps=6, logging_steps=3, gradient_accumulation_steps=2)
    listening = Listening()
    trainer = lm.trainer(args, train_dataset=Slow(), callbacks=[listening])
    trainer.train()
    told = [logs for logs in listening.told if "loss" in logs]
    kept = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert len(told) == 2 and [{**logs, "step": 3 * i + 3} for i, logs in enumerate(told)] == kept
    assert trainer.model_wrapped.reducer is not None and smdp.stats()["steps"] == 6
    entries = [entry for entry in trainer.state.log_history if "loss" in entry]
    return [{name[5:]: entry[name] for name in entry if name.startswith("smdp_")} for entry in entries]


def test_numbers_of_torchs_reducer() -> None:
    """Per step, not per batch."""
    for entries in run(over_torchs_reducer, 2):
        assert len(entries) == 2
        for entry in entries:
            assert entry.keys() == set(NUMBERS)
            assert entry["gradient_mb"] == pytest.approx(MEGABYTES)
            assert 0 < entry["communication_ms"] < 1e4 and 0 < entry["exposed_ms"] < 1e4
            assert 30 < entry["input_ms"] < 600


def of_replicas() -> Any:
    plugins = [ModelParallel(stages=1, microbatches=2), DataParallel()]
    trainer = lm.trainer(lm.arguments(max_steps=3, logging_steps=3), train_dataset=Slow(), plugins=plugins)
    trainer.train()
    (entry,) = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {name: entry[f"smdp_{name}"] for name in (*NUMBERS, "pipeline_ms")}


def test_numbers_of_both_plugins() -> None:
    for entry in run(of_replicas, 2):
        assert entry["gradient_mb"] == pytest.approx(MEGABYTES)
        assert entry["communication_ms"] > 0 < entry["pipeline_ms"]
        assert 15 < entry["input_ms"] < 300
