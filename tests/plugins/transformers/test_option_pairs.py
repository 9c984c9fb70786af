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
import torch.distributed as dist
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
        model = lm.model(n_embd=16, n_layer=2)
        start = {name: one.detach().clone() for name, one in model.named_parameters()}
        done = mp.trainer(args, model=model, plugins=[plugin])
        done.train()
        if mp.stages() == 1:
            return lm.losses(done), whole(done.model_wrapped) - torch.cat([*map(torch.ravel, start.values())])
        return lm.losses(done), moved_in_stages(done.model_wrapped, start)

    return train


def moved_in_stages(pipe: Any, start: dict[str, torch.Tensor]) -> torch.Tensor:
    """Returns the movement of all weights by name, because options move the cut between stages."""
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, dict(pipe.state_dict()))
    ends = {name: one for part in parts for name, one in part.items()}
    return torch.cat([(ends[name].float() - one).flatten() for name, one in start.items()])


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
        start = whole(plain)
        model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters(), 1e-3))
        losses = []
        for row in lm.rows(2, 2 * accelerator.process_index):
            # So small that scaled gradients fit in fp16: an overflow would skip the step.
            loss = 0.1 * model(**{key: value[None] for key, value in row.items()}).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses, whole(model) - start

    return train


@pytest.mark.parametrize("function", [in_data_parallel, in_replicas, in_stages, with_accelerate])
def test_pairs_of_options(function: Any, tmp_path: Path) -> None:
    run(function, 2, timeout=280, env={"SMDP_TEST_FOLDER": str(tmp_path)})
