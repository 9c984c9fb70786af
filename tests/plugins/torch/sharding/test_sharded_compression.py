"""Compressed gradients of a sharded optimizer, and what compression keeps of them for later steps."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import collected
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer

STEPS = 9
OVERFLOW = 3  # the step in which one element of a gradient is infinite, and thereby one shard
SAVED = 5
EVERY = range(STEPS)
KEEPING = (("int8", 0.0), ("topk", 0.9))
Made = tuple[DistributedDataParallel, Optimizer]


class Model(nn.Module):
    """Every third step no rank uses `some`: what is kept of it arrives nevertheless, and waits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.all = nn.Linear(20, 700)
        self.some = nn.Parameter(torch.randn(700))
        self.wide = nn.Parameter(torch.randn(700, dtype=torch.float64))  # is never compressed

    def forward(self, rows: Tensor, step: int) -> Tensor:
        out = torch.tanh(self.all(rows)) * self.wide
        return (out if step % 3 == 1 else out * self.some).square().mean()


def made(wire: str, momentum: float, scope: str | None, group: Any = None) -> Made:
    model = DistributedDataParallel(
        Model(), process_group=group, compression=wire, topk_ratio=0.1, topk_momentum=momentum
    )
    plain = torch.optim.AdamW(model.parameters(), lr=0.05)
    return model, plain if scope is None else ShardedOptimizer(plain, model, scope)


def trained(model: DistributedDataParallel, optimizer: Optimizer, steps: range = EVERY) -> list[Tensor]:
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** (12 if steps.start <= OVERFLOW else 11))
    model.follow(scaler)
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = model(torch.randn(8, 20, generator=generator), step)
        if step == OVERFLOW and dist.get_rank() == 0:
            loss = loss + math.inf * model.module.all.bias[0]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return [parameter.detach().clone() for parameter in model.parameters()]


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*both) for both in zip(one, other, strict=True))


def has_the_bits_of_data_parallelism(wires: Iterable[tuple[str, float]], group: Any = None) -> None:
    for wire, momentum in wires:
        expected = trained(*made(wire, momentum, None, group))
        # Hosts of one rank cannot share a state.
        for scope in ("host", "world") if group is None else ("world",):
            # In a world, the sums of topk travel to their owners without loss. Those of bf16 and int8 are not
            # rounded again, as they are where they return to all ranks.
            is_same = scope == "host" or wire == "topk"
            found = trained(*made(wire, momentum, scope, group))
            assert are_equal(found, expected) == is_same, (wire, momentum, scope)


def takes_over_what_was_kept() -> None:
    """A model that has trained unsharded before keeps nothing back for ever."""
    for wire, scope in (("int8", "host"), ("topk", "world")):
        expected = trained(*made(wire, 0.0, None))
        model, plain = made(wire, 0.0, None)
        trained(model, plain, range(SAVED))
        assert are_equal(trained(model, ShardedOptimizer(plain, model, scope), range(SAVED, STEPS)), expected)
    model, plain = made("int8", 0.0, None)
    trained(model, plain, range(2))
    before = residuals_of(model)
    optimizer = ShardedOptimizer(plain, model, "world")
    after = residuals_of(model)
    index = [one is model.module.all.weight for one in model.parameters()].index(True)
    (piece,) = optimizer.layout.pieces[index]
    own = slice(piece.begin, piece.end)
    assert before[0][own].any() and before[0].count_nonzero() > before[0][own].count_nonzero()
    assert torch.equal(after[2][own], before[0][own])  # comes with the next mean, as a late one
    assert torch.equal(after[0], before[0].clone().index_fill_(0, torch.arange(*piece), 0.0))


def residuals_of(model: DistributedDataParallel) -> dict[int, Tensor]:
    whole = {part: torch.zeros(model.module.all.weight.numel()) for part in range(3)}
    for part, (first, values) in model.residuals()["coded"]["all.weight"].items():
        whole[part][first : first + len(values)] = values
    return whole


def goes_through_a_checkpoint(scope: str, wires: Iterable[tuple[str, float]]) -> None:
    has_hosts = len(dist.distributed_c10d._get_default_group().core.hosts) > 1
    for wire, momentum in wires:
        whole = trained(*made(wire, momentum, scope))
        model, optimizer = made(wire, momentum, scope)
        trained(model, optimizer, range(SAVED))
        file = io.BytesIO()
        torch.save([model.state_dict(), collected(optimizer), model.residuals()], file)
        for is_given in (True, False):
            file.seek(0)
            weights, state, residuals = torch.load(file, weights_only=True)
            model, optimizer = made(wire, momentum, scope)
            model.load_state_dict(weights)
            optimizer.load_state_dict(state)
            if is_given:
                model.load_residuals(residuals)
            again = trained(model, optimizer, range(SAVED, STEPS))
            is_equal = are_equal(again, whole)
            assert is_equal == (is_given or not (has_hosts or momentum)), (wire, momentum, is_given)
        with pytest.raises(ValueError, match=f"saved with shards='{scope}', but here it is None"):
            made(wire, momentum, None)[0].load_residuals(residuals)
        with pytest.raises(ValueError, match=f"saved with shards=None, but here it is '{scope}'"):
            model.load_residuals(made(wire, momentum, None)[0].residuals())


def on_two_hosts() -> None:
    first_ranks = dist.new_group([0, 2])
    if dist.get_rank() in (0, 2):
        has_the_bits_of_data_parallelism(KEEPING, first_ranks)
    has_the_bits_of_data_parallelism([("bf16", 0.0), *KEEPING])
    takes_over_what_was_kept()
    goes_through_a_checkpoint("host", KEEPING[:1])
    goes_through_a_checkpoint("world", KEEPING)


def test_hosts_of_one_and_two_ranks() -> None:
    run(on_two_hosts, 4, hosts=[0, 0, 1, 1])


def on_one_host() -> None:
    for wire, momentum in KEEPING:
        expected = trained(*made(wire, momentum, None))
        assert are_equal(trained(*made(wire, momentum, "world")), expected), (wire, momentum)
    goes_through_a_checkpoint("world", KEEPING[1:])


@pytest.mark.slow
def test_one_host() -> None:
    """Nothing is compressed, and topk_momentum is applied to the pieces of the means."""
    run(on_one_host)
