"""A sharded optimizer trains to the bits of the unsharded one, and keeps its state once for all ranks."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import OPTIMIZERS, Net, differences, loss_of, made, train, values
from torch import nn
from torch.nn import Parameter
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel, ShardedOptimizer


def expect_same_bits(scope: str, names: Iterable[str] = OPTIMIZERS, steps: int = 20) -> None:
    for name in names:
        expected, plain = made(OPTIMIZERS[name], None)
        model, sharded = made(OPTIMIZERS[name], scope)
        train(expected, plain, range(steps))
        train(model, sharded, range(steps))
        assert differences(values(model), values(expected)) == 0.0, name


def same_bits_on_two() -> None:
    expect_same_bits("world")


@pytest.mark.parametrize("size", [3, 4])
def test_more_ranks_train_to_the_same(size: int) -> None:
    run(same_bits_of_some, size)


def same_bits_of_some() -> None:
    expect_same_bits("world", ["AdamW", "SGD"], 8)


def same_bits_of_hosts() -> None:
    expect_same_bits("world", ["AdamW"], 8)
    expect_same_bits("host", ["AdamW", "SGD"], 8)


def test_every_elementwise_optimizer_trains_to_the_same_bits() -> None:
    run(same_bits_on_two)


def test_two_hosts_train_to_the_same_bits() -> None:
    run(same_bits_of_hosts, 4, hosts=[0, 0, 1, 1])


def accumulates_averaged_gradients() -> None:
    """Without zero_grad(), backward adds to the mean of the backward before, and averages the sum."""
    expected, plain = made(lambda p: torch.optim.SGD(p, lr=0.01), None)
    model, sharded = made(lambda p: torch.optim.SGD(p, lr=0.01), "world")
    for each, its in ((expected, plain), (model, sharded)):
        for step in range(6):
            loss_of(each, step).backward()
            if step % 2:
                its.step()
    # A mean that is kept at its owner alone is rounded in another order.
    assert differences(values(model), values(expected)) < 1e-6


def test_gradients_that_are_not_cleared_accumulate() -> None:
    run(accumulates_averaged_gradients)


def clips_as_one_process() -> None:
    torch.set_default_dtype(torch.float64)  # sums of magnitudes are rounded in another order
    torch.manual_seed(0)
    alone = Net()
    once = torch.optim.SGD(alone.parameters(), lr=0.1)
    model, optimizer = made(lambda p: torch.optim.SGD(p, lr=0.1), "world")
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(6):
        once.zero_grad()
        for other in range(size):  # what all ranks do, one after the other
            generator = torch.Generator().manual_seed(1000 * step + other)
            tokens = torch.randint(300, (2, 9), generator=generator)
            hidden = torch.tanh(alone.hidden(alone.norm(alone.embedding(tokens[:, :-1]))))
            if other == 0:
                hidden = hidden + alone.often(hidden)
            output = hidden @ alone.embedding.weight.T
            loss = nn.functional.cross_entropy(output.flatten(0, 1), tokens[:, 1:].flatten())
            (loss / size).backward()
        optimizer.zero_grad()
        loss_of(model, step).backward()
        for order in (1.0, 2.0, math.inf):
            limit = 1e9 if order != 2.0 else 0.05
            expected = nn.utils.clip_grad_norm_(alone.parameters(), limit, order)
            found = nn.utils.clip_grad_norm_(model.parameters(), limit, order)
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
        nn.utils.clip_grad_value_(alone.parameters(), 1e-3)
        nn.utils.clip_grad_value_(model.parameters(), 1e-3)
        gradient = model.module.hidden.weight.grad
        torch.testing.assert_close(gradient.full_tensor(), alone.hidden.weight.grad, rtol=1e-12, atol=1e-15)
        once.step()
        optimizer.step()
    assert differences(values(model), values(alone)) < 1e-12, rank


def test_clipping_is_that_of_one_process() -> None:
    run(clips_as_one_process)


def skips_an_overflow_everywhere() -> None:
    model, optimizer = made(lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True), "world")
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    before = values(model)
    for step in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model, step)).backward()
        if step == 1:  # in one piece of one rank
            for parameter in model.parameters():
                if dist.get_rank() == 1 and parameter.grad is not None and parameter.grad.pieces:
                    parameter.grad.pieces[0][0] = math.inf
                    break
        scaler.step(optimizer)
        scaler.update()
        changed = differences(values(model), before) > 0
        assert changed == (step != 1), step
        before = values(model)
    assert scaler.get_scale() == 512.0


def test_an_overflow_on_one_shard_skips_the_step_everywhere() -> None:
    run(skips_an_overflow_everywhere)


def saves_and_loads() -> None:
    adamw = OPTIMIZERS["AdamW"]
    expected, plain = made(adamw, None)
    train(expected, plain, range(8))
    model, optimizer = made(adamw, "world")
    train(model, optimizer, range(4))
    with pytest.raises(RuntimeError, match="consolidate"):
        optimizer.state_dict()
    assert isinstance(optimizer, ShardedOptimizer)
    optimizer.consolidate(to=1)
    optimizer.consolidate(to=0)  # rank 1 keeps it
    box: list[Any] = [optimizer.state_dict() if dist.get_rank() == 1 else None]
    dist.broadcast_object_list(box, src=1)
    # Into the unsharded optimizer, and from it into a sharded one that has trained something else.
    unsharded, plain = made(adamw, None)
    unsharded.load_state_dict(model.state_dict())
    plain.load_state_dict(box[0])
    again, other = made(adamw, "world")
    train(again, other, range(50, 52))
    again.load_state_dict(unsharded.state_dict())
    other.load_state_dict(plain.state_dict())
    for each, its in ((unsharded, plain), (again, other), (model, optimizer)):
        its.zero_grad()
        train(each, its, range(4, 8))
    for each in (unsharded, again):
        assert differences(values(each), values(model)) == 0.0
    # A state that exists already is cut when the optimizer is wrapped.
    torch.manual_seed(0)
    late = DistributedDataParallel(Net())
    plain = adamw(late.parameters())
    train(late, plain, range(4))
    plain.zero_grad()
    train(late, ShardedOptimizer(plain, late), range(4, 8))
    assert differences(values(late), values(model)) == 0.0


def test_a_state_moves_to_an_unsharded_run_and_back() -> None:
    run(saves_and_loads)


def state_is_divided() -> None:
    torch.manual_seed(0)
    small = [nn.Linear(60, 60) for _ in range(20)]
    model = DistributedDataParallel(nn.Sequential(nn.Embedding(20_000, 60), *small))
    optimizer = ShardedOptimizer(torch.optim.AdamW(model.parameters()), model)
    model(torch.arange(10)).sum().backward()
    optimizer.step()
    own = sum(
        value.nbytes for state in optimizer.inner.state.values() for value in state.values() if value.dim()
    )
    whole = 2 * sum(parameter.nbytes for parameter in model.parameters())
    assert own <= 1.01 * whole / dist.get_world_size(), (own, whole)


def test_each_rank_holds_its_part_of_the_state() -> None:
    run(state_is_divided, 4)


def changes_options() -> None:
    expected, plain = made(lambda p: torch.optim.SGD(p, lr=0.1), None)
    model, sharded = made(lambda p: torch.optim.SGD(p, lr=0.1), "world")
    for each, its in ((expected, plain), (model, sharded)):
        scheduler = torch.optim.lr_scheduler.StepLR(its, 1, gamma=0.5)
        for step in range(4):
            its.zero_grad()
            loss_of(each, step).backward()
            its.step()
            scheduler.step()
    assert sharded.param_groups[0]["lr"] == 0.1 / 16
    assert [id(one) for one in sharded.param_groups[0]["params"]] == [id(one) for one in model.parameters()]
    assert differences(values(model), values(expected)) == 0.0


def test_schedulers_change_the_options() -> None:
    run(changes_options)


def dies_while_parameters_travel() -> None:
    model, optimizer = made(OPTIMIZERS["SGD"], "world")
    assert isinstance(optimizer, ShardedOptimizer)
    train(model, optimizer, range(2))
    loss_of(model, 2).backward()
    if dist.get_rank() == 1:
        optimizer.layout.gather = lambda: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment,return-value]
    begin = time.monotonic()
    with pytest.raises(smdp.PeerLostError, match="rank 1"):
        _ = optimizer.step(), optimizer.settle()
    assert time.monotonic() - begin < 5
    os._exit(0)  # the group is closed


def test_a_rank_that_dies_while_parameters_travel_is_named() -> None:
    run(dies_while_parameters_travel, 3, exits={1: -signal.SIGKILL})


def refuses() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 6)))
    parameters = list(model.parameters())
    before = values(model)
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: ShardedOptimizer(torch.optim.LBFGS(parameters), model), "cannot be divided between ranks"),
        (lambda: ShardedOptimizer(torch.optim.SGD(parameters), model, "machine"), "allowed: world, host"),
        (lambda: ShardedOptimizer(torch.optim.SGD(parameters), model.module), "wrapped in smdp"),
        (lambda: ShardedOptimizer(torch.optim.SGD([Parameter(torch.ones(3))]), model), r"of shape \(3,\)"),
        (lambda: ShardedOptimizer(parameters, model), "in place of an optimizer"),
    ]
    for make, words in cases:
        with pytest.raises(ValueError, match=words):
            make()
    assert differences(values(model), before) == 0.0
    optimizer = ShardedOptimizer(torch.optim.SGD(parameters, lr=0.1), model)
    with pytest.raises(ValueError, match="only one"):
        ShardedOptimizer(torch.optim.SGD(parameters, lr=0.1), model)
    model(torch.ones(2, 20)).sum().backward()
    with pytest.raises(RuntimeError, match="full_tensor"):
        parameters[0].grad.cumsum(0)
    with pytest.raises(ValueError, match=r"lacks the options 'dampening', 'momentum', .* of SGD"):
        optimizer.load_state_dict(torch.optim.Adam(parameters, lr=0.5).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.1
    with pytest.raises(ValueError, match="parameter groups of"):
        optimizer.load_state_dict(torch.optim.SGD(parameters[:2], lr=0.1).state_dict())
    optimizer.zero_grad()
    with model.no_sync():
        model(torch.ones(2, 20)).sum().backward()
    with pytest.raises(RuntimeError, match=r"'0\.weight' is not averaged"):
        optimizer.step()


def test_wrong_input_is_refused() -> None:
    run(refuses)
