"""What Trainers with ModelParallel refuse, and errors on one rank, which reach the others."""

from __future__ import annotations

import os
from typing import Any

import language_model as lm
import model_parallel_trainers as mp
import pytest
import torch
from transformers_spawn import run

from smdp.transformers import DataParallel, ModelParallel, Plugin, Seq2SeqTrainer, Seq2SeqTrainingArguments

pytestmark = pytest.mark.timeout(240)


def going_apart() -> Any:
    """Give a collator that draws, with a generator that is another one on rank 1 after a few batches."""
    generator = torch.Generator().manual_seed(0)
    calls = 0

    def collate(rows: list[Any]) -> Any:
        nonlocal calls
        calls += 1
        if calls == 5:
            generator.manual_seed(int(os.environ["RANK"]))
        batch = torch.utils.data.default_collate(rows)
        drawn = torch.rand(batch["labels"].shape, generator=generator)
        return {**batch, "labels": batch["labels"].masked_fill(drawn < 0.3, -100)}

    return collate


def refused() -> None:
    one = ModelParallel(stages=2, microbatches=4)

    def refuse(text: str, error: Any = ValueError, plugins: Any = None, **options: Any) -> None:
        with pytest.raises(error, match=text):
            mp.trainer(mp.arguments(**options), plugins=plugins or [one])

    refuse(
        "ModelParallel and ModelParallel cannot be used together: there are", plugins=[one, ModelParallel()]
    )
    compressed = [DataParallel("bf16", bucket_cap_mb=1), one]
    for plugins in (compressed, compressed[::-1]):
        refuse("do not support compression, bucket_cap_mb when they average", plugins=plugins)
    refuse(
        r"stages=3\) does not fit a job of 2 processes\. Start a multiple", plugins=[ModelParallel(stages=3)]
    )
    refuse(
        "auto_find_batch_size: the batch size.*bf16_full_eval: param",
        auto_find_batch_size=True,
        bf16_full_eval=True,
    )
    refuse("batch_rebalance'?: it distributes rows", train_sampling_strategy="batch_rebalance")
    refuse("the argument fsdp: it divides the model itself", fsdp="full_shard")
    with lm.launched_with("parallelism_config"):
        refuse("ACCELERATE_USE_PARALLELISM_CONFIG=true: it divides the model itself")
    refuse("torch_compile_backend='eager': stages are", torch_compile=True, torch_compile_backend="eager")
    refuse("optim='lomo': it steps in backward", optim="lomo")
    refuse("neftune_noise_alpha: its noise is added between", neftune_noise_alpha=5.0)
    refuse("use_liger_kernel: its fused losses are computed", use_liger_kernel=True)
    refuse("debug='underflow_overflow': it checks all", debug="underflow_overflow")
    refuse("dispatch_batches=True: every rank", accelerator_config={"dispatch_batches": True})
    args = Seq2SeqTrainingArguments(lm.folder(), predict_with_generate=True, report_to=[])
    with pytest.raises(ValueError, match="predict_with_generate: no rank has the whole model"):
        lm.trainer(args, Seq2SeqTrainer, plugins=[one])
    with pytest.raises(ValueError, match="there is no schedule '1f1c'; allowed: gpipe"):
        ModelParallel(schedule="1f1c")
    with pytest.raises(ValueError, match="stages = 0 is not valid"):
        ModelParallel(stages=0)
    with pytest.raises(TypeError, match="microbatches = '8' is not valid"):
        ModelParallel(microbatches="8")  # type: ignore[arg-type]

    with pytest.raises(ValueError, match=r"per_device_train_batch_size is 6, which .* 4 .*microbatches=3"):
        mp.trainer(mp.arguments(batch=6)).train()
    elsewhere = torch.optim.SGD(lm.model().parameters(), lr=0.1)
    with pytest.raises(ValueError, match=r"optimizers=.SGD, .*has no parameter of this rank"):
        mp.trainer(optimizers=(elsewhere, None)).train()
    with pytest.raises(ValueError, match="ranks 0 and 1 belong to one pipeline but have read different"):
        mp.trainer(train_dataset=lm.rows(16, first=16 * int(os.environ["RANK"]))).train()
    with pytest.raises(ValueError, match="ranks 0 and 1 belong to one pipeline but have read different"):
        mp.trainer(data_collator=going_apart()).train()


class Counting(Plugin):
    """Sees whole batches, wherever it stands in the list."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def run_step(self, trainer: Any, run: Any, model: Any, inputs: Any, items: Any) -> Any:
        self.rows.append(len(inputs["input_ids"]))
        return run(model, inputs, items)


def told() -> None:
    """Plugins beside it; numbers in the log; what stays usable; a second train(); one stage alone."""
    numbers = []
    for place in (0, 1):
        plugins = mp.plugins()[1:]
        plugins.insert(place, Counting())
        args = mp.arguments(max_steps=2, logging_steps=2)
        trainer = mp.trainer(args, plugins=plugins)
        trainer.train()
        assert next(plugin for plugin in plugins if isinstance(plugin, Counting)).rows == [8, 8]
        numbers.append(trainer.state.log_history[0])
    trainer.train()
    assert trainer.state.global_step == 2
    assert 0 < numbers[0]["smdp_wait_ms"] < numbers[0]["smdp_pipeline_ms"] < 1e4
    own = dict(trainer.model_wrapped.named_parameters())
    names = [name for name, _ in trainer.model.named_parameters()]
    assert 0 < len(own) < len(names) == len(list(lm.model().named_parameters()))
    assert trainer.model.config.n_layer == 2
    assert trainer.accelerator.unwrap_model(trainer.model_wrapped) is trainer.model
    assert trainer.model.num_parameters() == lm.model().num_parameters()
    assert plugins[0].pipe is trainer.model_wrapped  # type: ignore[attr-defined]


class Broken(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Cannot be read on the last rank, once training has begun."""

    reads = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        if self.reads > 30 and os.environ["RANK"] == "1":
            raise OSError(f"row {index} cannot be read")
        return lm.rows(64)[index]


def refused_told_and_broken() -> None:
    refused()
    told()
    print("ALL AS EXPECTED", flush=True)
    mp.trainer(mp.arguments(max_steps=10), train_dataset=Broken()).train()


def test_what_it_refuses_and_tells_and_an_error_on_one_rank() -> None:
    first, second = run(refused_told_and_broken, 2, exits={0: 1, 1: 1})
    assert "ALL AS EXPECTED" in first and "ALL AS EXPECTED" in second
    assert "OSError: row" in second
    assert "rank 1" in first and "it raised OSError: row" in first
