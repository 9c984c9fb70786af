"""Divided layers in pipelines, with replicas and sharded optimizers, train as one process does."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from divided_models import PLAN, VOCABULARY, Model, farthest, loss_of, own_part
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp.torch import ShardedOptimizer, clip_grad_norm_, tensor_parallel

STEPS, BATCH, LENGTH = 2, 8, 6
SCHEDULES = ("1f1b", "zb_v", "interleaved_1f1b")


def batches() -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [{"tokens": torch.randint(VOCABULARY, (BATCH, LENGTH), generator=generator)} for _ in range(STEPS)]


def loss_fn(logits: Tensor, batch: dict[str, Tensor]) -> Tensor:
    tokens = batch["tokens"][:, 1:].reshape(-1)
    return F.cross_entropy(logits[:, :-1].reshape(-1, VOCABULARY), tokens)


def model_of(stages: int = 2, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return Model(max(4, 2 * stages), **options)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@functools.cache
def alone(stages: int, tied: bool) -> tuple[nn.Module, list[float]]:
    """The model after all steps of one process, and the norms before clipping."""
    model = model_of(stages, tied=tied)
    optimizer = optimizer_of(model)
    norms = []
    for batch in batches():
        optimizer.zero_grad()
        loss_of(model, batch["tokens"]).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
    return model, norms


def trained(
    stages: int, tensor: int, schedule: str, *, sharded: bool = False, tied: bool = False
) -> tuple[Any, list[float]]:
    model = model_of(stages, tied=tied)
    tensor_parallel(model, tensor, PLAN)
    pipe = smdp.torch.pipeline(model, stages, 4, schedule, batches()[0], loss_fn=loss_fn)
    optimizer = optimizer_of(pipe)
    if sharded:
        optimizer = ShardedOptimizer(optimizer, pipe)
    norms = []
    for batch in batches():
        optimizer.zero_grad()
        own = {name: item.chunk(pipe.mesh.replicas)[pipe.mesh.replica] for name, item in batch.items()}
        pipe.train_step(own, loss_fn)
        norms.append(clip_grad_norm_(pipe, 0.5).item())
        optimizer.step()
    return pipe, norms


def check(stages: int, tensor: int, schedule: str, **options: Any) -> None:
    pipe, norms = trained(stages, tensor, schedule, **options)
    model, expected = alone(stages, options.get("tied", False))
    assert farthest(pipe, model, gradients=not options.get("sharded")) < 1e-5
    assert all(abs(a - b) <= 1e-6 * b for a, b in zip(norms, expected, strict=True)), (norms, expected)
    for name, parameter in pipe.named_parameters():
        # Replicas have the same bits, and so have whole parameters on the ranks that divide others.
        for axis in ("rdp",) if hasattr(parameter, "_smdp_cut") else ("rdp", "tp"):
            group = pipe.mesh.group(axis)
            copies = [torch.empty_like(parameter) for _ in range(group.size())]
            dist.all_gather(copies, parameter.detach(), group=group)
            assert all(torch.equal(each, parameter) for each in copies), name
    again, _ = trained(stages, tensor, schedule, **options)
    assert all(map(torch.equal, again.parameters(), pipe.parameters()))


def four_ranks() -> None:
    for schedule in SCHEDULES:
        check(2, 2, schedule, tied=schedule == "zb_v")
    check(1, 2, "1f1b", sharded=True)
    draws_the_masks_of_whole_layers()


def draws_the_masks_of_whole_layers() -> None:
    """Two replicas with 4 microbatches each draw what one replica with 8 draws."""
    found = []
    for tensor, microbatches in ((1, 4), (2, 8)):
        model = model_of(dropout=0.2)
        tensor_parallel(model, tensor, PLAN)
        pipe = smdp.torch.pipeline(model, 2, microbatches, seed=3, pins={"blocks.2": 1, "blocks.1": 0})
        for batch in batches():
            own = {name: item.chunk(pipe.mesh.replicas)[pipe.mesh.replica] for name, item in batch.items()}
            pipe.train_step(own, loss_fn)
        found.append(pipe)
    whole, divided = found
    expected = {}
    for name, parameter in whole.named_parameters():
        expected[name] = parameter.grad
    compared = 0
    for name, parameter in divided.named_parameters():
        if name in expected:
            torch.testing.assert_close(parameter.grad, own_part(expected[name], parameter))
            compared += 1
    assert compared or whole.mesh.stage_rank != divided.mesh.stage_rank


def test_four_ranks() -> None:
    run(four_ranks, 4)


def eight_ranks() -> None:
    for (stages, tensor), schedule in itertools.product([(2, 2), (4, 2)], SCHEDULES):
        check(stages, tensor, schedule, sharded=stages == 2)
    check(1, 4, "1f1b", sharded=True)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_eight_ranks() -> None:
    run(eight_ranks, 8, timeout=550)
