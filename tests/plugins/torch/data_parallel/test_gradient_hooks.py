"""When the wrapper takes a gradient, how long it keeps the memory, and what dtypes and sizes it averages."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel

WIDE = 700  # a weight of so many rows and columns is summed where it lies
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.complex128,
)


def layers() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDE, WIDE), nn.Linear(WIDE, WIDE), nn.Linear(WIDE, 3))


def inputs() -> Tensor:
    return torch.randn(4, WIDE, generator=torch.Generator().manual_seed(dist.get_rank()))


def doubled(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(2)


def clamped(parameter: Tensor) -> None:
    assert parameter.grad is not None
    parameter.grad.clamp_(-1, 1)


def early(ddp: DistributedDataParallel, index: int) -> bool:
    """Whether a gradient is taken as soon as it is there."""
    return ddp.gradient_hooks("the test").is_last(index)


def changed_by_hooks() -> None:
    """Hooks on parameters, before the wrapper's and after, are seen by all ranks, as with torch's class."""
    found = []
    for wrap in (TorchDistributedDataParallel, DistributedDataParallel):
        model = layers()
        for parameter in model[0].parameters():
            parameter.register_post_accumulate_grad_hook(doubled)
        ddp = wrap(model)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(clamped)
        for _ in range(2):
            ddp.zero_grad()
            ddp(inputs()).square().sum().backward()
            found.append([parameter.grad for parameter in model.parameters()])
    assert all(early(ddp, index) for index in range(len(found[0])))
    for same in zip(*found, strict=True):
        assert all(torch.equal(same[0], one) for one in same[1:])


def used_up_by_hooks() -> None:
    """An optimizer step in the hook, which leaves no gradient: there is nothing to average."""
    model = layers()
    ddp = DistributedDataParallel(model)
    kept = []

    def step(parameter: Tensor) -> None:
        parameter.grad = None
        kept.append(torch.full((WIDE, WIDE), 7.0))  # where the gradient was

    model[0].weight.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        ddp(inputs()).sum().backward()
        assert model[0].weight.grad is None and model[1].weight.grad is not None
    assert all(bool((values == 7).all()) for values in kept)


def replaced_while_they_travel() -> None:
    """The mean goes to what `.grad` is in the end; the memory of before is kept until then."""
    model, alone = layers(), layers()
    ddp = DistributedDataParallel(model)
    alone(inputs()).sum().backward()

    def replace(_: Tensor) -> None:  # the other layer's gradient is on its way
        model[1].weight.grad = torch.zeros(WIDE, WIDE)
        model[1].bias.grad = None

    model[0].weight.register_hook(replace)
    ddp(inputs()).sum().backward()
    for mine, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        total = theirs.grad.clone()
        dist.all_reduce(total)
        torch.testing.assert_close(mine.grad, total / dist.get_world_size())


def of_a_backward_that_broke_off() -> None:
    """The other rank sums what this one has handed over and dropped since."""
    model = layers()
    ddp = DistributedDataParallel(model)
    if dist.get_rank() == 0:

        def fail(_: Tensor) -> None:
            raise ZeroDivisionError

        model[0].bias.register_hook(fail)
        with pytest.raises(ZeroDivisionError):
            ddp(inputs()).sum().backward()
        ddp.zero_grad()
        mine = [torch.full((WIDE, WIDE), 7.0) for _ in range(6)]
        dist.barrier()
        time.sleep(0.5)  # nothing tells when the other's sums come; too short a time would only prove less
        assert all(bool((values == 7).all()) for values in mine)
        with pytest.raises(RuntimeError, match="If the previous backward failed midway"):
            ddp(inputs()).sum().backward()
        del ddp, model
    else:
        dist.barrier()
        with pytest.raises(smdp.SmdpError):
            ddp(inputs()).sum().backward()


class OfAllKinds(nn.Module):
    """Small and large parameters of every dtype."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kinds = nn.ParameterList(
            nn.Parameter(torch.randn(size).to(dtype)) for dtype in DTYPES for size in (7, 200_000)
        )

    def forward(self, factors: list[Tensor]) -> Tensor:
        products = [(one * factor).sum() for one, factor in zip(self.kinds, factors, strict=True)]
        return sum(
            product.real.double() + product.imag.double() if product.is_complex() else product.double()
            for product in products
        )


def of_all_dtypes() -> None:
    """The same bits as torch's class on the same backend; only float32 is ever compressed."""
    found: list[list[Tensor]] = []
    ways: list[Callable[[nn.Module], Any]] = [TorchDistributedDataParallel, DistributedDataParallel]
    if len(dist.distributed_c10d._get_default_group().core.hosts) > 1:
        ways.append(lambda model: DistributedDataParallel(model, compression="int8"))
    for wrap in ways:
        model = OfAllKinds()
        ddp = wrap(model)
        for step in range(2):
            model.zero_grad()
            generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
            ddp([torch.randn(one.shape, generator=generator).to(one.dtype) for one in model.kinds]).backward()
        found.append([one.grad for one in model.kinds])
    for theirs, *ours in zip(*found, strict=True):
        assert torch.equal(theirs, ours[0]), theirs.dtype
        for coded in ours[1:]:
            assert torch.equal(theirs, coded) == (theirs.dtype is not torch.float32)
            torch.testing.assert_close(theirs, coded, atol=0.1, rtol=0.1)


class Conjugate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(10, dtype=torch.complex64))
        self.bias = nn.Parameter(torch.ones(10))

    def forward(self, factor: Tensor) -> Tensor:
        # One rank leaves it out: its gradient comes from the others.
        return self.bias.sum() + ((self.weight.conj() * factor).sum().real if dist.get_rank() == 0 else 0)


def of_conjugates() -> None:
    """Autograd notes that such a gradient is to be conjugated, and leaves its memory as it is."""
    for wrap in (TorchDistributedDataParallel, DistributedDataParallel):
        model = Conjugate()
        ddp = wrap(model, find_unused_parameters=True)
        ddp(torch.full((10,), 1 + 2j)).backward()
        torch.testing.assert_close(model.weight.grad, torch.full((10,), (1 + 2j) / dist.get_world_size()))


def counted() -> dict[str, float]:
    rows = [row for row in smdp.stats()["operations"] if row["operation"] == "all_reduce"]
    return {name: sum(row[name] for row in rows) for name in ("calls", "bytes", "seconds")}


def measured_in_silence() -> None:
    """What the reducer tries out when it is made is no communication of the training."""
    before = counted()
    ddp = DistributedDataParallel(layers())
    assert counted() == before
    ddp(inputs()).sum().backward()
    assert counted()["calls"] == before["calls"] + 1


@pytest.mark.parametrize(
    "check",
    [
        changed_by_hooks,
        used_up_by_hooks,
        replaced_while_they_travel,
        of_a_backward_that_broke_off,
        of_conjugates,
        measured_in_silence,
    ],
)
def test_gradients(check: Callable[[], None]) -> None:
    run(check, 2)


@pytest.mark.parametrize("hosts", [[0, 0, 0], [0, 0], [0, 1]], ids=str)
def test_gradients_of_all_dtypes(hosts: list[int]) -> None:
    run(of_all_dtypes, len(hosts), hosts=hosts)
