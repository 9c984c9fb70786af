"""A sharded optimizer of a pipeline: the bits, the norms and the state of the unsharded one."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import Chain, Language, batches, differences, language_loss, made, rows, square_loss
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_spawn import run

import smdp.torch
from smdp.torch import ShardedOptimizer, clip_grad_norm_
from smdp.torch.pipelining.gradients.tied_shards import TiedShards
from smdp.torch.sharding.sharded_gradient import ShardedGradient

STEPS = batches(3, 8)
HIGH = 1e3  # a norm that does not clip, because norms of pieces are rounded in another order


def grouped(module: nn.Module) -> Optimizer:
    """Weight decay for matrices only, as scripts write it."""
    own = list(module.parameters())
    groups = [
        {"params": [each for each in own if each.ndim > 1], "weight_decay": 0.1},
        {"params": [each for each in own if each.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


def pair(schedule: str, tied: bool = False) -> Iterator[tuple[Any, Optimizer]]:
    """Yields a pipeline with an unsharded optimizer, and the same with a sharded one."""
    for is_sharded in (False, True):
        pipe = smdp.torch.pipeline(made(functools.partial(Language, 4, tied=tied)), 2, 4, schedule)
        plain = grouped(pipe)
        yield pipe, ShardedOptimizer(plain, pipe) if is_sharded else plain


def mine(pipe: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: item.chunk(pipe.mesh.replicas)[pipe.mesh.replica] for name, item in batch.items()}


def train(pipe: Any, optimizer: Optimizer, steps: list[dict[str, Tensor]]) -> list[Tensor]:
    """Measures norms, and evaluates between backward and the optimizer's step."""
    norms = []
    for number, batch in enumerate(steps):
        optimizer.zero_grad(set_to_none=number % 2 == 0)
        pipe.train_step(mine(pipe, batch), language_loss)
        pipe.eval_step(mine(pipe, batch), language_loss)
        norms.append(clip_grad_norm_(pipe, HIGH))
        optimizer.step()
    return norms


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    def same(a: Any, b: Any) -> bool:
        return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)

    return (
        one["param_groups"] == other["param_groups"]
        and one["state"].keys() == other["state"].keys()
        and all(
            value.keys() == other["state"][number].keys()
            and all(same(item, other["state"][number][key]) for key, item in value.items())
            for number, value in one["state"].items()
        )
    )


def bytes_of(optimizer: Optimizer) -> int:
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for key, value in state.items()
        if isinstance(value, Tensor) and key != "step"
    )


def check_bits_and_state(schedule: str, tied: bool) -> None:
    (pipe, plain), (other, sharded) = pair(schedule, tied)
    norms = train(pipe, plain, STEPS)
    found = train(other, sharded, STEPS)
    assert differences(other, pipe) == {}
    assert all(abs(a - b) <= 1e-6 * b for a, b in zip(found, norms, strict=True))
    assert bytes_of(sharded) <= 1.01 * bytes_of(plain) / pipe.mesh.replicas
    assert isinstance(sharded, ShardedOptimizer)
    # The state is that of the unsharded optimizer of these stages, in both directions.
    sharded.consolidate()
    states: list[Any] = [None]
    if pipe.mesh.replica == 0:
        states = [sharded.state_dict()]
        assert same_state(states[0], plain.state_dict())
    dist.broadcast_object_list(states, group=pipe.process_group, group_src=0)
    plain.load_state_dict(states[0])
    sharded.load_state_dict(plain.state_dict())
    train(pipe, plain, STEPS[:1])
    train(other, sharded, STEPS[:1])
    assert differences(other, pipe) == {}


def clips_like_one_process() -> None:
    """Clips every norm. SGD is linear in the gradients, so that their rounding bounds what differs."""
    alone = made(functools.partial(Language, 4, tied=True))
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    norms = []
    for batch in STEPS:
        optimizer.zero_grad()
        language_loss(alone(**batch), batch).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.1))
        optimizer.step()
    pipe = smdp.torch.pipeline(made(functools.partial(Language, 4, tied=True)), 2, 4)
    sharded = ShardedOptimizer(torch.optim.SGD(pipe.parameters(), lr=0.1), pipe)
    for batch, norm in zip(STEPS, norms, strict=True):
        sharded.zero_grad()
        pipe.train_step(mine(pipe, batch), language_loss)
        found = clip_grad_norm_(pipe, 0.1)
        assert norm > 0.2
        assert abs(found - norm) <= 1e-6 * norm
        sharded.step()
    assert all(far < 1e-6 for far in differences(pipe, alone).values())


def accumulates() -> None:
    """Two steps add up before the optimizer's: pieces of tied weights are kept from the first."""
    (pipe, plain), (other, sharded) = pair("1f1b", tied=True)
    for module, optimizer in ((pipe, plain), (other, sharded)):
        for _ in range(2):
            optimizer.zero_grad()
            for batch in STEPS[:2]:
                module.train_step(mine(module, batch), language_loss)
            # torch's clips a stage by the norm of this stage, with and without shards.
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            clip_grad_norm_(module, 0.1)
            optimizer.step()
    # The mean of a mean and of a sum is rounded in another order, and so are norms.
    assert all(far < 1e-5 for far in differences(other, pipe).values())


def scales() -> None:
    """An overflow in one shard of one stage skips the step everywhere."""
    results = []
    for pipe, optimizer in pair("1f1b"):
        scaler = smdp.torch.GradScaler(pipe, init_scale=2.0**10)
        before = [each.clone() for each in pipe.parameters()]
        for number, batch in enumerate(STEPS):
            optimizer.zero_grad()
            part = mine(pipe, batch)
            pipe.train_step(part, language_loss, scaler=scaler)
            if number == 0 and pipe.mesh.stage_rank == 1:
                grad = next(pipe.parameters()).grad
                if not isinstance(grad, ShardedGradient):
                    grad.view(-1)[-1] = float("inf")
                elif pipe.mesh.replica == 1:
                    grad.pieces[-1][-1] = float("inf")
            scaler.unscale_(optimizer)
            clip_grad_norm_(pipe, HIGH)
            scaler.step(optimizer)
            scaler.update()
            if number == 0:
                assert all(map(torch.equal, pipe.parameters(), before))
        results.append((pipe, scaler.get_scale()))
    assert results[0][1] == results[1][1] == 2.0**9
    assert differences(results[1][0], results[0][0]) == {}


def freezes_and_thaws() -> None:
    """Parameters of the optimizer may be frozen when it is sharded, and trained later."""
    trained = []
    for is_sharded in (False, True):
        model = made(Chain)
        model.layers[:3].requires_grad_(False)
        pipe = smdp.torch.pipeline(model, 2, 4)
        optimizer: Optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
        if is_sharded:
            optimizer = ShardedOptimizer(optimizer, pipe)
        for batch in rows(3, 8):
            optimizer.zero_grad()
            pipe.train_step(mine(pipe, batch), square_loss)
            optimizer.step()
            pipe.requires_grad_(True)
        trained.append(pipe)
    assert differences(trained[1], trained[0]) == {}


def refuses() -> None:
    model = made(Language)
    early = torch.optim.SGD(model.parameters(), lr=0.1)
    pipe = smdp.torch.pipeline(model, 2, 4)
    with pytest.raises(ValueError, match=r"from the parameters\(\) of the split model"):
        ShardedOptimizer(early, pipe)
    with pytest.raises(ValueError, match=r"from the parameters\(\) of the split model"):
        ShardedOptimizer(torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1), pipe)
    with pytest.raises(ValueError, match="got a Language, but needs a model"):
        ShardedOptimizer(grouped(pipe), model)  # type: ignore[arg-type]
    sharded = ShardedOptimizer(grouped(pipe), pipe)
    with pytest.raises(ValueError, match="Create only one for a model"):
        ShardedOptimizer(grouped(pipe), pipe)
    with pytest.raises(ValueError, match="not sharded or wrapped yet"):
        ShardedOptimizer(sharded, pipe)
    train(pipe, sharded, STEPS[:1])
    # Other groups need another optimizer, which may be created then.
    pipe.mesh.placement = pipe.mesh.placement
    train(pipe, ShardedOptimizer(grouped(pipe), pipe), STEPS[:1])
    pipe.mesh.placement = pipe.mesh.placement
    with pytest.raises(RuntimeError, match="the placement of a pipeline has changed"):
        pipe.train_step(mine(pipe, STEPS[0]), language_loss)


def two_by_two() -> None:
    check_bits_and_state("1f1b", False)
    check_bits_and_state("zb_v", True)
    clips_like_one_process()
    accumulates()
    scales()
    freezes_and_thaws()
    refuses()


def test_two_replicas_of_two_stages() -> None:
    run(two_by_two, 4)


class Alone:
    """Shards of one replica."""

    def agree(self, holds: bool) -> bool:
        return holds


def cut_otherwise() -> None:
    """Stages whose replicas share hosts in different ways, as 8 ranks may, do not own the same elements."""
    group = dist.distributed_c10d._get_default_group()
    parameter = nn.Parameter(torch.zeros(4))
    for ranges, is_same in (([(0, 2)], True), ([(0, 2 + dist.get_rank())], False)):
        tied = TiedShards(Alone(), [parameter])  # type: ignore[arg-type]
        mean = types.SimpleNamespace(ranges=ranges)
        assert tied._is_cut_alike(parameter, mean, group) is is_same  # type: ignore[arg-type]
    TiedShards._is_cut_alike = lambda *_: False  # type: ignore[method-assign]
    check_bits_and_state("1f1b", True)


@pytest.mark.slow
def test_stages_that_own_other_elements_add_tied_weights() -> None:
    run(cut_otherwise, 4)


def one_replica() -> None:
    check_bits_and_state("1f1b", True)


def test_one_replica_works_like_an_unsharded_one() -> None:
    run(one_replica, 2)
