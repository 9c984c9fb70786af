"""Replicas of a pipeline on GPUs: gradients cross through the core's reducer, as those on the CPU do."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from pipeline_models import Chain, adam, differences, made, only_x, rows, square_loss, train_alone
from torch_spawn import run

import smdp.torch
from smdp import _core

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def replicas() -> None:
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    steps = [{name: item.to(device) for name, item in batch.items()} for batch in rows(3, 16)]
    alone = made(Chain).to(device)
    train_alone(alone, steps, 8, square_loss, call=only_x)
    pipe = smdp.torch.pipeline(made(Chain).to(device), 2, 4, example_inputs=steps[0])
    assert pipe.layout.replicas == 2
    optimizer = adam(pipe)
    before = _core.step_count().steps
    for batch in steps:
        optimizer.zero_grad()
        pipe.train_step(
            {name: item.chunk(2)[pipe.layout.replica] for name, item in batch.items()}, square_loss
        )
        optimizer.step()
    assert _core.step_count().steps == before + len(steps)
    assert all(far < 1e-5 for far in differences(pipe, alone).values()), differences(pipe, alone)


def test_replicas_on_gpus() -> None:
    run(replicas, 4)
