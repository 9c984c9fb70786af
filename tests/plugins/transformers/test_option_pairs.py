"""All pairs of options: a Trainer or an Accelerator trains as without them, or refuses them beforehand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import language_model as lm
import model_parallel_trainers as mp
import pytest
import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from option_pairs import OPTIONS, Result, check_pairs, whole
from transformers_spawn import run

import smdp.accelerate
from smdp.transformers import DataParallel, ModelParallel

pytestmark = pytest.mark.timeout(300)


def trainer(plugin: Any) -> Callable[[], Result]:
    def train() -> Result:
        args = mp.arguments(max_steps=2, learning_rate=1e-3)
        done = mp.trainer(args, model=lm.model(n_embd=16, n_layer=2), plugins=[plugin])
        done.train()
        # Options move the cut between stages. The second loss shows whether the first update was right.
        weights = whole(done.model_wrapped) if mp.stages() == 1 else torch.empty(0)
        return lm.losses(done), weights

    return train


def in_data_parallel() -> None:
    os.environ["STAGES"] = "1"
    check_pairs(lambda **given: trainer(DataParallel(**given)), list(OPTIONS))


def in_replicas() -> None:
    in_model_parallel(1)


def in_stages() -> None:
    in_model_parallel(2)


def in_model_parallel(stages: int) -> None:
    os.environ["STAGES"] = str(stages)
    names = ["recompute", "offload", "bf16", "fp16", "shard_optimizer", "shared"]
    check_pairs(lambda **given: trainer(ModelParallel(stages, 2, **given)), names)


def with_accelerate() -> None:
    check_pairs(accelerated, list(OPTIONS))


def accelerated(**given: Any) -> Callable[[], Result]:
    options = smdp.accelerate.DataParallel(**given)

    def train() -> Result:
        accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend="smdp")])
        options.apply(accelerator)
        plain = lm.model(n_embd=16, n_layer=2)
        model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), 1e-3))
        losses = []
        for row in lm.rows(2, 2 * accelerator.process_index):
            loss = model(**{key: value[None] for key, value in row.items()}).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, whole(model)

    return train


@pytest.mark.parametrize("function", [in_data_parallel, in_replicas, in_stages, with_accelerate])
def test_pairs_of_options(function: Any, tmp_path: Path) -> None:
    run(function, 2, timeout=280, env={"SMDP_TEST_FOLDER": str(tmp_path)})
