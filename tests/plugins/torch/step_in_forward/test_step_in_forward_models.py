"""Steps in the next forward: other ways into a model, copies of it, ranks that leave or die meanwhile."""

from __future__ import annotations

import copy
import os
import pickle
import time
from collections.abc import Callable, Iterable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.optim import SGD, Optimizer
from torch.utils.checkpoint import checkpoint
from torch_spawn import run

from smdp.torch import DistributedDataParallel, StepInForward


class Nested(nn.Module):
    """Lists of lists, a weight that two units share, a frozen one, and a way in past the root's forward."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 16)
        self.blocks = nn.ModuleList(nn.ModuleList([nn.Linear(16, 16), nn.Tanh()]) for _ in range(3))
        self.layer(2).weight = self.layer(0).weight
        self.layer(1).weight.requires_grad_(False)
        self.attention = nn.MultiheadAttention(16, 2)  # uses a weight of a child that it does not call

    def layer(self, number: int) -> nn.Linear:
        block = self.blocks[number]
        assert isinstance(block, nn.ModuleList) and isinstance(block[0], nn.Linear)
        return block[0]

    def encode(self, x: Tensor) -> Tensor:
        x, _ = self.attention(x, x, x)
        for number in range(3):
            x = self.layer(number)(x).tanh()
        stemmed: Tensor = self.stem(x)
        return stemmed

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x, _ = self.attention(x, x, x)
        for number in range(3):
            x = checkpoint(self.layer(number), x, use_reentrant=False).relu()
        with torch.autocast("cpu", torch.bfloat16):
            stemmed: Tensor = self.stem(x)
        return stemmed.float()


class Chain(nn.Module):
    """Blocks one after the other, and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(16, 64)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return linear(x, self.stem.weight.t())


def inputs(step: int) -> Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))


def values(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def twins(
    make: Callable[[], nn.Module], units: Callable[[nn.Module], Iterable[nn.Module] | None] = lambda _: None
) -> Iterator[tuple[DistributedDataParallel, SGD]]:
    """Give the model twice, the second time with steps in its forward."""
    for is_deferred in (False, True):
        torch.manual_seed(3)
        model = DistributedDataParallel(make())
        optimizer = SGD(model.parameters(), 0.1, momentum=0.9)
        if is_deferred:
            StepInForward(model, optimizer, units=units(model.module))
        yield model, optimizer


def learn(model: nn.Module, optimizer: Optimizer, step: int) -> None:
    optimizer.zero_grad()
    model(inputs(step)).square().mean().backward()
    optimizer.step()


def check_units() -> None:
    results = []
    for model, optimizer in twins(Chain, lambda chain: [chain.blocks[1], chain.blocks[3]]):  # type: ignore[index]
        for step in range(3):
            learn(model, optimizer, step)
        model.state_dict()
        results.append(values(model))
    assert torch.equal(*results)


def check_ways_in() -> None:
    results = []
    for model, optimizer in twins(Nested):
        seen = []
        for step in range(4):
            learn(model, optimizer, step)
            with torch.inference_mode():
                seen.append(model.module.encode(inputs(step)).clone())
        model.state_dict()
        others = [pickle.loads(pickle.dumps(model.module)), copy.deepcopy(model.module)]
        learn(model, optimizer, 4)
        with torch.no_grad():
            seen += [one(inputs(5)) for one in (*others, model)]
        results.append(torch.cat([value.flatten() for value in seen]))
    assert torch.equal(*results)


def check_compiled() -> None:
    results = []
    for model, optimizer in twins(Chain):
        model.compile(backend="eager")
        for step in range(4):
            learn(model, optimizer, step)
        model.state_dict()
        results.append(values(model))
    assert torch.equal(*results)


def test_units_of_ones_own() -> None:
    run(check_units)


def test_ways_into_the_model_and_copies() -> None:
    run(check_ways_in)


def test_compiled() -> None:
    run(check_compiled)


kept: list[object] = []


def check_early_leave() -> None:
    model = DistributedDataParallel(Chain())
    optimizer = SGD(model.parameters(), 0.1)
    kept.extend([model, StepInForward(model, optimizer)])  # till the interpreter ends
    learn(model, optimizer, 0)
    loss = model(inputs(1)).square().mean()
    optimizer.zero_grad()
    if dist.get_rank() == 0:
        time.sleep(1)
    loss.backward()
    optimizer.step()
    if dist.get_rank() == 0:
        time.sleep(1)
        assert model.state_dict()


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_a_rank_that_ends_first_sends_what_others_wait_for(hosts: list[int] | None) -> None:
    run(check_early_leave, hosts=hosts)


def check_dead_rank() -> None:
    model = DistributedDataParallel(Chain())
    optimizer = SGD(model.parameters(), 0.1)
    StepInForward(model, optimizer)
    learn(model, optimizer, 0)
    loss = model(inputs(1)).square().mean()
    if dist.get_rank() == 1:
        time.sleep(0.5)
        os._exit(3)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    start = time.monotonic()
    with pytest.raises(RuntimeError, match=r"\[smdp\] rank 0 of 2 .*rank 1 .*died"):
        model(inputs(2))
    assert time.monotonic() - start < 6
    with pytest.raises(
        RuntimeError, match=r"Continue from a checkpoint in a new process. The error was: .*rank 1"
    ):
        model.state_dict()
    os._exit(0)


def test_a_dead_rank_is_named_in_the_forward() -> None:
    run(check_dead_rank, exits={1: 3})
