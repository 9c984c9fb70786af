"""Replicas of a divided model train as one process does: averaging, sharding, clipping and loss scaling."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from divided_models import (
    PLAN,
    VOCABULARY,
    Fused,
    Model,
    divide_fused,
    farthest,
    loss_of,
    own_part,
)
from sharded_models import OPTIMIZERS
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp.torch.mesh.cuts import cut_of, mesh_of_slices


def divided(degree: int, **options: Any) -> tuple[Model, Model]:
    """Returns a divided model, and the same one whole."""
    torch.manual_seed(0)
    alone = Model(**options)
    return smdp.torch.tensor_parallel(copy.deepcopy(alone), degree, PLAN), alone


def tokens_of(step: int) -> Tensor:
    """Two rows for each of two replicas."""
    return torch.randint(VOCABULARY, (4, 7), generator=torch.Generator().manual_seed(step))


def replicas() -> None:
    """Two replicas of two ranks each. Replica 1 starts with other values, which replica 0 replaces."""
    model, alone = divided(2, tied=True)
    replica = dist.get_rank() // 2
    if replica == 1:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1)
    wrapped = smdp.torch.DistributedDataParallel(model)
    assert dist.get_process_group_ranks(wrapped.process_group) == [
        dist.get_rank() % 2,
        dist.get_rank() % 2 + 2,
    ]
    assert farthest(model, alone) == 0
    pair = [(wrapped, tokens_of(0).chunk(2)[replica]), (alone, tokens_of(0))]
    for each, tokens in pair:
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        loss_of(each, tokens).backward()
        optimizer.step()
    assert farthest(model, alone) < 1e-6
    whole = {name: one.grad for name, one in model.named_parameters() if cut_of(one) is None}
    assert len(whole) > 8
    told: list[Any] = [None] * 4
    dist.all_gather_object(told, whole)
    for other in told:
        for name, gradient in whole.items():
            assert torch.equal(gradient, other[name]), (
                name
            )  # to the last bit, so that copies never drift apart
    group = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        with pytest.raises(ValueError, match=r"are \d, \d, but process_group has ranks 0, 1\. Leave"):
            smdp.torch.DistributedDataParallel(model, process_group=group)
    with pytest.raises(ValueError, match=r"has ranks 0, 1, 2, 3\. Leave"):
        smdp.torch.DistributedDataParallel(model, process_group=dist.group.WORLD)


def clips(degree: int) -> None:
    """Key heads that two ranks share count once, as do whole parameters."""
    for order in (2.0, 1.0, math.inf):
        model, alone = divided(degree, key_heads=2)
        norms = []
        for each, clip in ((model, smdp.torch.clip_grad_norm_), (alone, nn.utils.clip_grad_norm_)):
            loss_of(each, tokens_of(1)).backward()
            norms.append(clip(each.parameters(), 0.01, order).item())
        assert norms[0] == pytest.approx(norms[1], rel=1e-6)
        assert farthest(model, alone) < 1e-7


def skips() -> None:
    """An overflow in one slice skips the step on all ranks."""
    model, _ = divided(2)
    wrapped = smdp.torch.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scaler = smdp.torch.GradScaler(wrapped, init_scale=4.0)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    for is_lost in (True, False):
        optimizer.zero_grad()
        scaler.scale(loss_of(wrapped, tokens_of(0))).backward()
        if is_lost and dist.get_rank() % 2 == 1:
            model.blocks[1].up.weight.grad[0, 0] = math.inf
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == 2.0
        assert all(map(torch.equal, before, model.parameters())) == is_lost


def sharded(scope: str | None, name: str) -> tuple[nn.Module, list[float], Any]:
    model, _ = divided(2, tied=True, key_heads=1)
    wrapped = smdp.torch.DistributedDataParallel(model)
    optimizer = OPTIMIZERS[name](wrapped.parameters())
    if scope is not None:
        optimizer = smdp.torch.ShardedOptimizer(optimizer, wrapped, scope)
    norms = []
    for step in range(3):
        optimizer.zero_grad()
        loss_of(wrapped, tokens_of(step).chunk(2)[dist.get_rank() // 2]).backward()
        norms.append(smdp.torch.clip_grad_norm_(wrapped.parameters(), 0.3).item())
        optimizer.step()
    if scope is not None:
        optimizer.consolidate()
    first = mesh_of_slices(model.parameters()).ranks("rdp")[0]  # type: ignore[union-attr]
    state = optimizer.state_dict()["state"] if scope is None or dist.get_rank() == first else {}
    return model, norms, state


def shards() -> None:
    for name, scope in (("AdamW", "world"), ("SGD", "host")):
        plain, norms, state = sharded(None, name)
        model, its_norms, its_state = sharded(scope, name)
        assert its_norms == pytest.approx(norms, rel=1e-6)
        for one, other in zip(model.parameters(), plain.parameters(), strict=True):
            assert torch.equal(one, other)
        for number, entry in its_state.items():
            for key, value in entry.items():
                assert torch.equal(torch.as_tensor(value), torch.as_tensor(state[number][key])), (number, key)


def counts_ranges_once() -> None:
    """A layer of which two ranks hold the same range has the norm and the values of one process."""
    for scope in (None, "world"):
        torch.manual_seed(0)
        alone = Fused()
        model = smdp.torch.DistributedDataParallel(divide_fused(copy.deepcopy(alone)))
        plain = OPTIMIZERS["AdamW"](model.parameters())
        optimizer = plain if scope is None else smdp.torch.ShardedOptimizer(plain, model, scope)
        both = OPTIMIZERS["AdamW"](alone.parameters())
        for step in range(2):
            inputs = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            both.zero_grad()
            model(inputs.chunk(2)[dist.get_rank() // 2]).backward()
            alone(inputs).backward()
            for order in (2.0, math.inf):
                found = smdp.torch.clip_grad_norm_(model.parameters(), 0.3, order)
                expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.3, order)
                torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
            optimizer.step()
            both.step()
        for name, parameter in model.module.named_parameters():
            whole = alone.get_parameter(name)
            torch.testing.assert_close(parameter, own_part(whole, parameter), rtol=0, atol=1e-6)


def all_of_it() -> None:
    counts_ranges_once()
    replicas()
    clips(2)
    clips(4)
    skips()
    shards()


def test_replicas_of_a_divided_model() -> None:
    run(all_of_it, 4)
