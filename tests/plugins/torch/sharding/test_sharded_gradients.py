"""The gradients of a sharded optimizer, and what it refuses."""

from __future__ import annotations

import copy
import gc
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import (
    Maker,
    adamw,
    backward,
    collected,
    deep,
    differ,
    linear,
    pair,
    sgd,
)
from torch import Tensor, nn
from torch.nn import Parameter
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer
from smdp.torch.optimizers.optimizer_link import OptimizerLink


def gradients_become_old() -> tuple[nn.Module, list[Tensor]]:
    """Returns a module with gradients whose wrapper is gone, and the values of this rank's pieces."""
    model, optimizer = pair(deep, adamw)[1]
    weight = model.module[0].weight
    backward(model)
    kept: Any = weight.grad
    contribution = kept.contribution()
    size = dist.get_world_size()
    dist.all_reduce(contribution)
    torch.testing.assert_close(contribution / size, kept.full_tensor())
    optimizer.step()  # contribution() has not changed it
    with model.no_sync():
        backward(model, 1)
    for call in (kept.full_tensor, lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
        with pytest.raises(RuntimeError, match="has added to this gradient"):
            call()
    optimizer.zero_grad()
    backward(model, 2)
    for call in (kept.full_tensor, kept.zero_, lambda: torch.linalg.vector_norm(kept)):
        with pytest.raises(RuntimeError, match="kept from an earlier backward"):
            call()
    before = [piece.clone() for one in model.parameters() for piece in one.grad.pieces]
    return model.module, before


def gradients_are_kept() -> None:
    module, before = gradients_become_old()
    gc.collect()  # the model, the optimizer and their reducer
    # The memory of the means lives as long as the gradients.
    junk = [torch.full((25_000,), math.pi) for _ in range(200)]
    after = [piece for one in module.parameters() for piece in one.grad.pieces]
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True)), len(junk)
    # A module can be wrapped again once its wrapper is gone.
    module.zero_grad()
    again = DistributedDataParallel(module)
    backward(again)
    assert type(module[0].weight.grad) is Tensor


def norms_are_those_of_torch(scope: str) -> None:
    # The bias has no elements on some ranks.
    (plain, _), (model, _) = pair(lambda: nn.Linear(8, 30), adamw, scope)
    for each in (plain, model):
        backward(each)
    orders = (0, 1, 2, 3.0, math.inf, -1, -2, -math.inf)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert isinstance(one.grad, Tensor)
        for order in orders:
            expected = torch.linalg.vector_norm(one.grad, order)
            torch.testing.assert_close(torch.linalg.vector_norm(other.grad, order), expected, msg=str(order))


def clipping_is_one_collective(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = pair(deep, adamw)[1]
    calls: list[int] = []
    reduce = dist.all_reduce
    monkeypatch.setattr(dist, "all_reduce", lambda *a, **k: (calls.append(1), reduce(*a, **k)))
    for step in range(2):
        optimizer.zero_grad()
        backward(model, step)
        for limit in (0.01, 0.001):  # the second norm is that of clipped gradients
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        torch.testing.assert_close(norm, torch.tensor(0.001), rtol=1e-3, atol=0)
        optimizer.step()
    assert len(calls) == 6


def unsupported_calls_leave_the_pieces() -> None:
    model, optimizer = pair(deep, adamw)[1]
    backward(model)
    grad: Any = model.module[0].weight.grad
    before = grad.full_tensor()
    model.module.to(torch.device("cpu", 0))
    assert model.module[0].weight.grad is grad
    calls: list[tuple[Callable[[], object], str]] = [
        (model.module.share_memory, r"share_memory_\(\) of a gradient of shape \(50, 8\)"),
        (grad.untyped_storage, r"untyped_storage\(\) of a gradient"),
        (lambda: grad.mul_(torch.ones(8)), r"got a tensor of shape \(8,\)"),
        (lambda: grad.div_(torch.ones(50, 8)), r"got a tensor of shape \(50, 8\)"),
        (lambda: grad.clamp_(max=torch.zeros(50, 8)), r"got a tensor of shape \(50, 8\)"),
    ]
    for call, words in calls:
        with pytest.raises(RuntimeError, match=words):
            call()
    grad.mul_(torch.ones(1))
    assert torch.equal(grad.full_tensor(), before)
    optimizer.step()


class ClippedSGD(torch.optim.SGD):
    """Its update depends on the norm of all parameters."""

    def step(self, closure: Any = None) -> Any:
        nn.utils.clip_grad_norm_([one for group in self.param_groups for one in group["params"]], 0.05)
        return super().step(closure)


class Still(torch.optim.SGD):
    def step(self, closure: Any = None) -> Any:
        return None


def refuses_models() -> None:
    """Each message names the cause."""

    def wrapped(make: Callable[[], nn.Module], optimizer: Maker, **options: Any) -> ShardedOptimizer:
        model = DistributedDataParallel(make(), **options)
        return ShardedOptimizer(optimizer(model.parameters()), model)

    def gaps() -> nn.Module:
        module = nn.Linear(8, 8)
        module.weight = Parameter(torch.randn(8, 16)[:, ::2])
        return module

    low = nn.Linear(8, 8, bias=False).bfloat16()
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: wrapped(gaps, sgd), "'weight' of shape .* has gaps"),
        (lambda: wrapped(linear, lambda p: OptimizerLink(sgd(p))), "got a OptimizerLink"),
        (lambda: wrapped(linear, lambda p: ClippedSGD(p, lr=0.1)), "depends on other elements"),
        (lambda: wrapped(linear, lambda p: Still(p, lr=0.1)), "did not change"),
        (lambda: wrapped(linear, torch.optim.LBFGS), "closure"),  # the error of the optimizer
    ]
    for make, words in cases:
        with pytest.raises(ValueError, match=words):
            make()
        gc.collect()
    # How an optimizer updates shows even if its own rate changes nothing.
    assert wrapped(lambda: low, lambda p: torch.optim.Adafactor(p, lr=1e-5)).layout.whole
    assert wrapped(linear, lambda p: torch.optim.Adafactor(p, lr=0.0)).layout.whole
    assert differ(pair(linear, lambda p: torch.optim.AdamW(p, lr=0.0, weight_decay=0.0))) == 0.0
    shared = nn.Linear(8, 8)
    first = DistributedDataParallel(nn.Sequential(shared, nn.Linear(8, 3)))
    second = DistributedDataParallel(nn.Sequential(shared, nn.Linear(8, 2)))
    with pytest.raises(ValueError, match=r"'0\.weight' also belongs to another wrapped model"):
        ShardedOptimizer(sgd(first.parameters()), first)
    del second
    optimizer = ShardedOptimizer(sgd(first.parameters()), first)
    with pytest.raises(ValueError, match=r"'weight' also belongs to a wrapped model in a ShardedOptimizer"):
        DistributedDataParallel(shared)
    with pytest.raises(ValueError, match=r"join\(\) cannot be used with ShardedOptimizer"), first.join():
        pass
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(optimizer)
    # Gradients that the parameters still have do not keep the wrapper alive.
    first(torch.ones(1, 8)).sum().backward()
    optimizer.step()
    module = first.module
    del first, optimizer
    DistributedDataParallel(module)


def test_gradients_are_kept_measured_and_refused() -> None:
    run(measures_and_refuses)


def measures_and_refuses() -> None:
    gradients_are_kept()
    unsupported_calls_leave_the_pieces()
    with pytest.MonkeyPatch.context() as patch:
        clipping_is_one_collective(patch)
    norms_are_those_of_torch("world")
    refuses_models()


def hosts_own_copies() -> None:
    norms_are_those_of_torch("host")
    both = pair(deep, adamw, "host")
    assert differ(both) == 0.0
    (plain, its), (model, sharded) = both
    for number, state in collected(sharded)["state"].items():
        assert torch.equal(state["exp_avg"], its.state_dict()["state"][number]["exp_avg"])
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert isinstance(one.grad, Tensor)
        assert torch.equal(other.grad.full_tensor(), one.grad)  # type: ignore[union-attr]


def test_hosts_collect_the_bits() -> None:
    run(hosts_own_copies, 4, hosts=[0, 0, 1, 1])
