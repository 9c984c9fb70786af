"""What compression keeps for later steps goes through a checkpoint."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch_spawn import run

import smdp.torch

STEPS = 8
SAVED = 5


class Model(nn.Module):
    """Every third step nobody uses `some`: what is kept of it arrives all the same, and waits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.all = nn.Linear(20, 700)
        self.some = nn.Parameter(torch.randn(700))
        self.wide = nn.Parameter(torch.randn(700, dtype=torch.float64))  # is never compressed

    def forward(self, rows: torch.Tensor, step: int) -> torch.Tensor:
        out = torch.tanh(self.all(rows)) * self.wide
        return (out if step % 3 == 1 else out * self.some).square().mean()


def wrapped(wire: str, momentum: float) -> tuple[Any, torch.optim.Optimizer]:
    net = smdp.torch.DistributedDataParallel(
        Model(), compression=wire, topk_ratio=0.1, topk_momentum=momentum
    )
    return net, torch.optim.SGD(net.parameters(), lr=0.5)


def trained(net: Any, optimizer: torch.optim.Optimizer, steps: range) -> list[torch.Tensor]:
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        optimizer.zero_grad()
        net(torch.randn(8, 20, generator=generator), step).backward()
        optimizer.step()
    return [parameter.detach() for parameter in net.parameters()]


def through_a_checkpoint() -> None:
    has_hosts = len(dist.distributed_c10d._get_default_group().core.hosts) > 1
    for wire, momentum in (("int8", 0.0), ("topk", 0.0), ("topk", 0.9)):
        whole = trained(*wrapped(wire, momentum), range(STEPS))
        net, optimizer = wrapped(wire, momentum)
        trained(net, optimizer, range(SAVED))
        assert not has_hosts or 2 in net.residuals()["coded"]["some"]  # the mean that waits
        file = io.BytesIO()
        torch.save([net.state_dict(), optimizer.state_dict(), net.residuals()], file)
        for is_given in (True, False):
            file.seek(0)
            model, state, residuals = torch.load(file, weights_only=True)
            net, optimizer = wrapped(wire, momentum)
            net.load_state_dict(model)
            optimizer.load_state_dict(state)
            if is_given:
                net.load_residuals(residuals)
            again = trained(net, optimizer, range(SAVED, STEPS))
            is_equal = all(torch.equal(*pair) for pair in zip(again, whole, strict=True))
            assert is_equal == (is_given or not (has_hosts or momentum)), (wire, momentum, is_given)


def of_something_else() -> None:
    net, optimizer = wrapped("int8", 0.0)
    trained(net, optimizer, range(2))
    state = net.residuals()
    assert state["coded"]
    with pytest.raises(ValueError, match=r"saved with compression='int8', but here it is 'topk'"):
        wrapped("topk", 0.0)[0].load_residuals(state)
    name, parts = next(iter(state["coded"].items()))
    part = next(iter(parts))
    for wrong, message in (
        ({"x": 1}, "needs the result of residuals"),
        ({"of": state["of"], "velocity": {}}, "needs the result of residuals"),
        (
            {**state, "coded": {name: {part: (0, torch.ones(10**6))}}},
            f"1000000 elements of gradient '{name}'",
        ),
        ({**state, "coded": {name: 3}}, "needs the result of residuals"),
        ({**state, "coded": {name: {7: parts[part]}}}, "needs the result of residuals"),
        # The first of these is right, and not taken either.
        (
            {**state, "coded": {name: {part: (0, torch.full((3,), 7.0))}, "x": {part: (-1, torch.ones(3))}}},
            "needs the result of residuals",
        ),
        (
            {**state, "velocity": {name: torch.ones(3)}},
            rf"velocity of gradient '{name}' is \[3\] in the residuals and \[\d",
        ),
        (None, "needs the result of residuals"),
        (
            {**state, "of": {**state["of"], "parameters": ["other of 3 elements"]}},
            rf"parameters='other of 3 elements', but here it is '{next(iter(net.module.state_dict()))} of \d",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            net.load_residuals(wrong)
    same = net.residuals()["coded"]
    assert all(torch.equal(same[one][k][1], state["coded"][one][k][1]) for one in same for k in same[one])
    state["of"]["rank"] += 1
    with pytest.raises(ValueError, match=r"saved with rank=\d, but here it is \d"):
        net.load_residuals(state)
    plain, _ = wrapped("bf16", 0.0)
    assert plain.residuals() == {}
    plain.load_residuals({})


def on_two_hosts() -> None:
    through_a_checkpoint()
    of_something_else()


def test_goes_on_with_the_same_bits() -> None:
    """Also where ranks share a host, and each codes a part of a fusion buffer."""
    run(on_two_hosts, 3, hosts=[0, 0, 1])


@pytest.mark.slow
def test_momentum_on_one_host() -> None:
    run(through_a_checkpoint)
