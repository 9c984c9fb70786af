"""Steps in the next forward give the bits of steps after backward, and refuse what they would get wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import StepLR
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch_spawn import run

from smdp.torch import DistributedDataParallel, StepInForward


class Net(nn.Module):
    """Blocks, one of which a rank may leave out, between a stem and a tied head."""

    def __init__(self, width: int = 256) -> None:
        super().__init__()
        self.stem = nn.Linear(16, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh()) for _ in range(4)
        )
        self.left_out: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number, block in enumerate(self.blocks):
            if number != self.left_out:
                x = x + block(x)
        return linear(x, self.stem.weight.t())


def net(width: int = 256) -> Net:
    torch.manual_seed(1)
    return Net(width)


def inputs(step: int) -> Tensor:
    return torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * step + dist.get_rank()))


def values(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def zero(optimizers: list[Optimizer]) -> None:
    for optimizer in optimizers:
        optimizer.zero_grad()


def train(
    makes: Callable[[nn.Module], list[Optimizer]],
    is_deferred: bool,
    *,
    compression: str = "none",
    leaves_out: bool = False,
    accumulates: bool = False,
    zeroes: str = "first",
) -> tuple[list[float], Tensor]:
    model = DistributedDataParallel(net(), compression=compression)
    optimizers = makes(model)
    schedulers = [StepLR(optimizers[0], 2, gamma=0.5)]
    if is_deferred:
        StepInForward(model, *optimizers)
    schedulers += [StepLR(one, 3, gamma=0.5) for one in optimizers[1:]]
    losses = []
    for step in range(8):
        model.module.left_out = 2 if leaves_out and (step % 3 == dist.get_rank()) else None
        if zeroes == "first":
            zero(optimizers)
        if accumulates:
            with model.no_sync():
                model(inputs(100 + step)).square().mean().backward()
        loss = model(inputs(step)).square().mean()
        if zeroes == "after forward":
            zero(optimizers)
        loss.backward()
        losses.append(loss.item())
        if step == 3:
            zero(optimizers)  # a step that is thrown away
            continue
        for one in (*optimizers, *schedulers):
            one.step()
        if step == 6:
            for one in optimizers:
                one.step()
        if step == 4:
            model.eval()
            with torch.no_grad():
                losses.append(model(inputs(50)).square().mean().item())
            model.train()
    state = torch.cat([value.flatten() for value in model.state_dict().values()])
    # By parameter: optimizers list what they keep in the order of their first steps.
    states = [one.state_dict()["state"] for one in optimizers]
    kept = [value for each in states for key in sorted(each) for value in each[key].values()]
    return losses, torch.cat([state, *(value.flatten() for value in kept if isinstance(value, Tensor))])


def adam(model: nn.Module) -> list[Optimizer]:
    return [AdamW(model.parameters(), 1e-2)]


def tensor_rates(model: nn.Module) -> list[Optimizer]:
    return [SGD(model.parameters(), torch.tensor(0.1), momentum=0.9)]


def two(model: nn.Module) -> list[Optimizer]:
    wide = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    narrow = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    groups = [{"params": wide[:2], "lr": 0.1}, {"params": wide[2:], "weight_decay": 0.01}]
    return [SGD(groups, 0.05, momentum=0.9), AdamW(narrow, 1e-2)]


def check_bits() -> None:
    for makes in (adam, two):
        for leaves_out in (False, True):
            for accumulates in (False, True):
                plain = train(makes, False, leaves_out=leaves_out, accumulates=accumulates)
                deferred = train(makes, True, leaves_out=leaves_out, accumulates=accumulates)
                assert deferred[0] == plain[0], (makes, leaves_out, accumulates)
                assert torch.equal(deferred[1], plain[1]), (makes, leaves_out, accumulates)
    plain, deferred = train(tensor_rates, False), train(tensor_rates, True)
    assert deferred[0] == plain[0]
    assert torch.equal(deferred[1], plain[1])
    for zeroes in ("after forward", "never"):
        plain = train(two, False, zeroes=zeroes, leaves_out=True)
        deferred = train(two, True, zeroes=zeroes, leaves_out=True)
        assert deferred[0] == plain[0], zeroes
        assert torch.equal(deferred[1], plain[1]), zeroes


def check_compressed_bits() -> None:
    for compression in ("bf16", "int8", "topk"):
        plain = train(adam, False, compression=compression)
        deferred = train(adam, True, compression=compression)
        assert deferred[0] == plain[0], compression
        assert torch.equal(deferred[1], plain[1]), compression


@pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])
def test_same_bits(size: int) -> None:
    run(check_bits, size)


def test_same_bits_with_compression_between_hosts() -> None:
    run(check_compressed_bits, hosts=[0, 1])


def check_what_is_seen_between() -> None:
    model = DistributedDataParallel(net())
    optimizer = SGD(model.parameters(), 0.1)
    steps = StepInForward(model, optimizer)
    before = values(model)
    model(inputs(0)).square().mean().backward()
    for reads in (
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
        lambda: model.module.stem.weight.grad.sum(),
        lambda: optimizer.zero_grad(set_to_none=False),
        lambda: _unscale(optimizer),
    ):
        with pytest.raises(RuntimeError, match=r"still being averaged \(StepInForward\)"):
            reads()
    # Without step(), gradients come back when asked for, and nothing has moved.
    steps.settle()
    assert torch.equal(values(model), before)
    means = [parameter.grad.clone() for parameter in model.parameters()]
    assert nn.utils.clip_grad_norm_(model.parameters(), 1e9) > 0
    optimizer.step()
    after = values(model)
    expected = torch.cat([mean.flatten() for mean in means])
    assert torch.allclose(after, before - 0.1 * expected)
    # A step that was noted is carried out by whatever saves the model, and leaves the gradients, as without.
    optimizer.zero_grad()
    model(inputs(1)).square().mean().backward()
    optimizer.step()
    assert torch.equal(values(model), after)
    saved = copy.deepcopy(model.module.blocks[3].state_dict())
    assert not torch.equal(values(model), after)
    assert torch.equal(saved["1.weight"], model.module.blocks[3][1].weight)
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    dist.barrier()


def _unscale(optimizer: Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)


def test_what_is_seen_between() -> None:
    run(check_what_is_seen_between)


class Twice(torch.autograd.Function):
    """Uses a weight where only dispatch sees it."""

    @staticmethod
    def forward(context: object, x: Tensor, weight: Tensor) -> Tensor:  # type: ignore[override]
        return x + weight.sum()

    @staticmethod
    def backward(context: object, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return grad, grad.sum().expand(16, 16)


SIDEWAYS: list[Callable[[Tensor, Tensor], Tensor]] = [
    linear,
    lambda x, weight: x @ weight.T,
    lambda x, weight: x @ weight.data,
    lambda x, weight: x @ torch.cat([weight, weight], 1)[:, :16],
    lambda x, weight: Twice.apply(x, weight),
]


class Sideways(nn.Module):
    """Uses a unit's weight outside the unit."""

    def __init__(self, way: int = 0) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 16), nn.Linear(16, 16)])
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return SIDEWAYS[self.way](self.blocks[0](x), self.blocks[1].weight)


class Counting(SGD):
    """Keeps a number for each group."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
        super().step(closure)


def check_refusals() -> None:
    model = DistributedDataParallel(net())
    optimizer = SGD(model.parameters(), 0.1)
    with pytest.raises(ValueError, match="but needs a model wrapped in"):
        StepInForward(model.module, optimizer)
    with pytest.raises(ValueError, match=r"StepInForward got a str in place of an optimizer"):
        StepInForward(model, "adam")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"units contains a Linear that is not part of the model"):
        StepInForward(model, optimizer, units=[nn.Linear(1, 1)])
    with pytest.raises(ValueError, match=r"parameter 'of shape \(3,\)', whose gradient the model"):
        StepInForward(model, SGD([nn.Parameter(torch.zeros(3))], 0.1))
    StepInForward(model, optimizer)
    with pytest.raises(ValueError, match="already in a StepInForward"):
        StepInForward(model, optimizer)
    with pytest.raises(ValueError, match="got a closure"):
        optimizer.step(lambda: 0.0)
    with pytest.raises(ValueError, match="Remove one of them"), model.join():
        pass
    model(inputs(0)).sum().backward()
    with pytest.raises(RuntimeError, match="still being averaged"):
        model.module.stem.weight.grad.add_(1)
    optimizer.step()
    model(inputs(1)).sum().backward()
    model.state_dict()

    momentum = DistributedDataParallel(net(), compression="topk", topk_momentum=0.9)
    with pytest.raises(ValueError, match="topk_momentum"):
        StepInForward(momentum, optimizer)

    for way in range(len(SIDEWAYS)):
        sideways = DistributedDataParallel(Sideways(way))
        optimizer = SGD(sideways.parameters(), 0.1)
        StepInForward(sideways, optimizer)
        sideways(inputs(0)).sum().backward()
        optimizer.step()
        with torch.no_grad():  # an evaluation of another path
            sideways.module.blocks[0](inputs(0))
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"'blocks.1.weight' is used before its unit's forward"):
                sideways(inputs(1))
        sideways.state_dict()

    hooked = DistributedDataParallel(net())
    optimizer = SGD(hooked.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    StepInForward(hooked, optimizer)
    hooked(inputs(0)).sum().backward()
    with pytest.raises(ValueError, match="the optimizer has step hooks"):
        optimizer.step()
    optimizer._optimizer_step_post_hooks.clear()
    handle = register_optimizer_step_pre_hook(lambda *_: None)
    with pytest.raises(ValueError, match="the optimizer has step hooks"):
        optimizer.step()
    handle.remove()
    optimizer.step()
    hooked.state_dict()

    counting = DistributedDataParallel(net())
    optimizer = Counting(counting.parameters(), 0.1)
    StepInForward(counting, optimizer)
    counting(inputs(0)).sum().backward()
    optimizer.step()
    with pytest.raises(RuntimeError, match="Counting keeps 'steps' for a whole group of parameters"):
        counting(inputs(1))
    with pytest.raises(RuntimeError, match=r"without their last step\. Continue from a checkpoint"):
        counting.state_dict()


def test_refusals() -> None:
    run(check_refusals)
