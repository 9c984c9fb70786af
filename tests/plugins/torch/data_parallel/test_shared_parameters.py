"""Models that share parameters, each in a wrapper, train as with torch's class over gloo."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch_spawn import run

import smdp
import smdp.torch
from smdp.torch.data_parallel import shared_parameters

Wrapper = Callable[[nn.Module], Any]


def rows(step: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return torch.randn(4, 3, generator=generator)


def models(wrap: Wrapper, count: int = 2) -> list[Any]:
    torch.manual_seed(0)
    shared = nn.Linear(3, 3)
    return [wrap(nn.Sequential(shared, nn.Linear(3, 2))) for _ in range(count)]


def backward(*outputs: Tensor) -> None:
    torch.stack([output.pow(2).sum() for output in outputs]).sum().backward()  # type: ignore[no-untyped-call]


def together(wrap: Wrapper) -> Sequence[nn.Module]:
    three = models(wrap, 3)
    backward(*(model(rows(1)) for model in three))
    return three


def in_turn(wrap: Wrapper) -> Sequence[nn.Module]:
    pair = models(wrap)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in pair]
    for step in range(4):
        for model, optimizer in zip(pair, optimizers, strict=True):
            optimizer.zero_grad()
            backward(model(rows(step)))
            optimizer.step()
    return pair


def accumulated(wrap: Wrapper) -> Sequence[nn.Module]:
    first, second = pair = models(wrap)
    with first.no_sync(), second.no_sync():
        backward(first(rows(1)), second(rows(2)))
    backward(first(rows(3)), second(rows(4)))
    return pair


def accumulated_in_one(wrap: Wrapper) -> Sequence[nn.Module]:
    first, second = pair = models(wrap)
    with first.no_sync():
        backward(first(rows(1)))
    backward(second(rows(2)))
    backward(first(rows(3)))
    return pair


def chained(wrap: Wrapper) -> Sequence[nn.Module]:
    torch.manual_seed(0)
    shared = nn.Linear(3, 3)
    first, second = wrap(shared), wrap(nn.Sequential(shared, nn.Linear(3, 2)))
    backward(second(first(rows(1))))
    return first, second


def nested(wrap: Wrapper) -> Sequence[nn.Module]:
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(3, 3), wrap(nn.Linear(3, 2))))
    backward(model(rows(1)))
    backward(model(rows(2)))
    return [model]


def frozen(wrap: Wrapper) -> Sequence[nn.Module]:
    torch.manual_seed(0)
    shared = nn.Linear(3, 3).requires_grad_(False)
    pair = [wrap(nn.Sequential(shared, nn.Linear(3, 2))) for _ in range(2)]
    backward(*(model(rows(1)) for model in pair))
    return pair


def tied(wrap: Wrapper) -> Sequence[nn.Module]:
    torch.manual_seed(0)
    layer = nn.Linear(3, 3)
    model = wrap(nn.Sequential(layer, nn.ReLU(), layer))
    backward(model(rows(1)))
    return [model]


def values(trained: Sequence[nn.Module]) -> list[Tensor | None]:
    parameters = [parameter for model in trained for parameter in model.parameters()]
    return [*parameters, *(parameter.grad for parameter in parameters)]


def as_torchs_class_does() -> None:
    gloo = dist.new_group(backend="gloo")

    def torchs(module: nn.Module) -> nn.Module:
        return TorchDistributedDataParallel(module, process_group=gloo)

    for train in (together, in_turn, accumulated, accumulated_in_one, chained, nested, frozen, tied):
        expected, got = values(train(torchs)), values(train(smdp.torch.DistributedDataParallel))
        for one, other in zip(expected, got, strict=True):
            torch.testing.assert_close(other, one, msg=lambda text, name=train.__name__: f"{name}: {text}")
        gc.collect()


def forwards_before_backwards() -> None:
    """torch's class refuses it: its second reducer takes the first backward for its own."""
    first, second = pair = models(smdp.torch.DistributedDataParallel)
    losses = [model(rows(step)).pow(2).sum() for step, model in enumerate(pair)]
    for loss in losses:
        loss.backward()
    got = first.module[0].weight.grad.clone()
    total = torch.zeros_like(got)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    other = nn.Sequential(net[0], nn.Linear(3, 2))
    backward(net(rows(0)), other(rows(1)))
    total += net[0].weight.grad  # type: ignore[arg-type]
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(got, total)
    assert second.module[0].weight.grad is first.module[0].weight.grad


def only_those_in_a_backward_sum_copies() -> None:
    first, second = models(smdp.torch.DistributedDataParallel)
    hooks = first.gradient_hooks("the test")
    deliver, are_copies = hooks.deliver, []

    def look(index: int, grad: Tensor) -> Tensor | None:
        are_copies.append(hooks.lent[index] is not grad)
        return deliver(index, grad)

    with mock.patch.object(hooks, "deliver", look):
        backward(first(rows(1)))
        backward(first(rows(2)), second(rows(2)))
    assert are_copies == [False] * 4 + [True, True, False, False]


def closed_hooks_are_forgotten() -> None:
    first, second = models(smdp.torch.DistributedDataParallel)
    hooks = first.gradient_hooks("the test")
    assert [other for other, _ in hooks.shared.others(0)] == [second.gradient_hooks("the test")]
    second.gradient_hooks("the test").close()
    assert not hooks.shared.others(0) and not hooks.shared.others(1)
    assert not hooks.shared.indices
    assert len(shared_parameters._uses) == len(hooks.parameters)


def step_in_forward_is_refused() -> None:
    first, _second = models(smdp.torch.DistributedDataParallel)
    with pytest.raises(
        ValueError, match=r"StepInForward: parameter '0.weight' also belongs to another wrapped model"
    ):
        smdp.torch.StepInForward(first, torch.optim.SGD(first.parameters(), 0.1))
    del first, _second
    alone = smdp.torch.DistributedDataParallel(nn.Linear(2, 2))
    steps = smdp.torch.StepInForward(alone, torch.optim.SGD(alone.parameters(), 0.1))
    with pytest.raises(ValueError, match="parameter 'weight' also belongs to a model in a StepInForward"):
        smdp.torch.DistributedDataParallel(alone.module)
    del steps, alone
    gc.collect()
    assert not shared_parameters._uses


def test_as_torchs_class_does() -> None:
    run(as_torchs_class_does, 3)


def test_forwards_before_backwards() -> None:
    run(forwards_before_backwards, 2)


def test_only_those_in_a_backward_sum_copies() -> None:
    run(only_those_in_a_backward_sum_copies, 2)


def test_closed_hooks_are_forgotten() -> None:
    run(closed_hooks_are_forgotten, 1)


def test_step_in_forward_is_refused() -> None:
    run(step_in_forward_is_refused, 2)
