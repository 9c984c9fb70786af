"""Backwards past the tensors of the model's output, or that reach no parameter; models that differ."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel, SyncBatchNorm


def gathered(value: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, value)
    return parts


def penalises_gradients() -> None:
    """torch.autograd.grad() through the output, then a backward that does not pass it."""
    found = []
    for class_ in (nn.parallel.DistributedDataParallel, DistributedDataParallel):
        torch.manual_seed(0)
        model: nn.Module = class_(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1, bias=False)))
        torch.manual_seed(dist.get_rank())
        for _ in range(3):
            model.zero_grad()
            x = torch.randn(3, 4, requires_grad=True)
            (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            slope.square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
        assert all(torch.equal(*gathered(grad)) for grad in found[-1])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def penalises_in_any_order() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1, bias=False)))
    torch.manual_seed(dist.get_rank())

    def slope(**options: bool) -> Tensor:
        x = torch.randn(3, 4, requires_grad=True)
        return torch.autograd.grad(model(x).sum(), x, **options)[0].square().sum()

    def is_averaged() -> bool:
        found = all(torch.equal(*gathered(parameter.grad)) for parameter in model.parameters())
        model.zero_grad()
        return found

    first, second = slope(create_graph=True), slope(create_graph=True)
    first.backward()
    assert is_averaged()
    second.backward()
    assert is_averaged()
    penalty = slope(create_graph=True)
    model(torch.randn(3, 4)).sum().backward()
    assert is_averaged()
    slope()
    penalty.backward()
    assert is_averaged()
    if dist.get_rank() == 0:  # what passes the wrapper by is nobody else's business, also after penalties
        model.module(torch.ones(1, 4)).sum().backward()
    dist.barrier()


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first, second = self.layer(x).tanh().chunk(2, -1)
        return first, second


def penalises_one_half() -> None:
    """Nothing comes of the other output of chunk()."""
    model = DistributedDataParallel(Halves())
    torch.manual_seed(dist.get_rank())
    x = torch.randn(3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(model(x)[0].sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert torch.equal(*gathered(model.module.layer.weight.grad))


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.variable = x.detach()  # as nodes of leaves have one
        return 2 * x

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        return 2 * slope


def goes_back_for_some_alone() -> None:
    """Gradients of an input, on one rank alone: nothing is sent, wherever in memory nodes lie."""
    below = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))
    model = DistributedDataParallel(nn.Linear(4, 1, bias=False))
    for step in range(20):
        if dist.get_rank() == 1:
            x = torch.randn(3, 4, requires_grad=True)
            model(x).sum().backward(inputs=[x])
            model(below(x)).sum().backward(inputs=list(below.parameters()))
            torch.autograd.grad(Doubled.apply(model(x)).sum(), x)
        model.zero_grad()
        model(torch.full((1, 4), float(step + dist.get_rank()))).sum().backward()
        assert torch.equal(model.module.weight.grad, torch.full((1, 4), step + 0.5)), step


class Out:
    """In which torch looks for no tensors."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second


class Hidden:
    """In which nobody does."""

    __slots__ = ("first", "second")

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second


class Two(nn.Module):
    def __init__(self, kind: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.kind = kind
        self.body, self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Any:
        body = self.body(x)
        return self.kind(self.first(body), self.second(body))


def goes_back_twice() -> None:
    for kind in (Out, Hidden):
        model = DistributedDataParallel(Two(kind))
        torch.manual_seed(dist.get_rank())
        for _ in range(2):
            out = model(torch.randn(2, 3))
            out.first.sum().backward(retain_graph=True)
            model.zero_grad()
            out.second.square().sum().backward()
            parameters = model.module.second.parameters()
            assert all(torch.equal(*gathered(parameter.grad)) for parameter in parameters)
        # Past the wrapper, on one rank alone.
        if kind is Out and dist.get_rank() == 0:
            model.module(torch.randn(2, 3)).first.sum().backward()
        dist.barrier()


def goes_back_past_what_was_found() -> None:
    """An object beside a tensor, or in an object."""

    def deep(first: Tensor, second: Tensor) -> Any:
        return Out(Out(first, second), second)  # type: ignore[arg-type]

    for holder in (Out, Hidden, deep):
        model = DistributedDataParallel(Two(lambda first, second, hold=holder: (first, hold(second, first))))
        torch.manual_seed(dist.get_rank())
        value, held = model(torch.randn(2, 3))
        value.sum().backward(retain_graph=True)
        model.zero_grad()
        policy = held.first.first if holder is deep else held.first
        policy.square().sum().backward()
        assert torch.equal(*gathered(model.module.second.weight.grad))


class Skipped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, is_skipped: bool) -> Tensor:
        return x if is_skipped else x + self.weight * x.detach()


def skips_the_model() -> None:
    """On one rank no parameter gets a gradient; what it has of `no_sync` counts all the same."""
    below = nn.Linear(1, 1, bias=False)
    nn.init.ones_(below.weight)
    model = DistributedDataParallel(Skipped())
    is_second = dist.get_rank() == 1
    for step in range(4):
        model.zero_grad()
        x = torch.tensor([[float(step + 1)]])
        model(below(x), is_second and step == 1).sum().backward()
        assert model.module.weight.grad == (1.0 if step == 1 else step + 1), step
    for step in range(2):
        model.zero_grad()
        with model.no_sync():
            model(below(torch.ones(1, 1)), False).sum().backward()
        model(below(torch.ones(1, 1)), is_second and step == 0).sum().backward()
        assert model.module.weight.grad == (1.5 if step == 0 else 2.0), step
    # Through a frozen model nothing is sent, also not on one rank alone.
    model.module.weight.requires_grad_(False)
    if is_second:
        model(below(torch.ones(1, 1)), False).sum().backward()


CHECKS = [
    penalises_gradients,
    penalises_in_any_order,
    goes_back_for_some_alone,
    goes_back_twice,
    goes_back_past_what_was_found,
    penalises_one_half,
    skips_the_model,
]


@pytest.mark.parametrize("check", CHECKS)
def test_gradients_are_means(check: Any) -> None:
    run(check, 2)


def differs() -> None:
    is_second = dist.get_rank() == 1
    with pytest.raises(
        smdp.MismatchError, match=r"'weight' float32\[4, 6\] on rank 1, and .*\[6, 4\] on rank 0"
    ):
        DistributedDataParallel(nn.Linear(6, 4, bias=False) if is_second else nn.Linear(4, 6, bias=False))
    layout = torch.channels_last if is_second else torch.contiguous_format
    with pytest.raises(smdp.MismatchError, match=r"\[4, 3, 3, 3\] with strides \[27, 1, 9, 3\] on rank 1"):
        DistributedDataParallel(nn.Conv2d(3, 4, 3, bias=False).to(memory_format=layout))
    ratio = 1e-7 * (1 + is_second)
    with pytest.raises(smdp.MismatchError, match="top-k ratio"):
        DistributedDataParallel(nn.Linear(2, 2), compression="topk", topk_ratio=ratio)
    kind = torch.float8_e5m2 if is_second else torch.float8_e4m3fn
    with pytest.raises(smdp.MismatchError, match="float8_e5m2"):
        dist.all_gather_into_tensor(torch.empty(8).to(kind), torch.ones(4).to(kind))


def test_models_and_values_that_differ() -> None:
    run(differs, 2)


def makes_a_group_in_a_child() -> None:
    child = os.fork()
    if child == 0:
        try:
            dist.new_group([0, 1])
        except smdp.ClosedError as error:
            os._exit(7 if "forked child of rank" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    dist.barrier(dist.new_group([0, 1]))


def test_forked_children_make_no_groups() -> None:
    run(makes_a_group_in_a_child, 2)


def uses_smdp_in_a_child_of_its_own() -> None:
    """One forked when there was no default group, and one of a rank of gloo."""
    dist.init_process_group("smdp", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()
    child = os.fork()
    if child == 0:
        dist.init_process_group("smdp", store=dist.HashStore(), rank=0, world_size=1)
        os._exit(7 if dist.get_world_size(dist.new_group([0])) == 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    child = os.fork()
    if child == 0:
        try:
            dist.new_group([0], backend="smdp")
        except smdp.ClosedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_forked_children_may_be_ranks_of_another_job() -> None:
    run(uses_smdp_in_a_child_of_its_own, 1, init=False)


def test_a_batch_norm_under_two_names_stays_one() -> None:
    norm = nn.BatchNorm1d(3)
    model: Any = SyncBatchNorm.convert(nn.ModuleDict({"a": norm, "b": norm, "c": nn.Sequential(norm)}))
    assert isinstance(model["a"], SyncBatchNorm)
    assert model["a"] is model["b"] is model["c"][0]
