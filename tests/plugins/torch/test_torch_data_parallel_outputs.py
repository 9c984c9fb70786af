"""Backwards past the tensors of the model's output, or that reach no parameter; models that differ."""

from __future__ import annotations

import os
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


class Out:
    """In which nobody looks for tensors."""

    def __init__(self, first: Tensor, second: Tensor) -> None:
        self.first, self.second = first, second


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 1), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Out:
        body = self.body(x)
        return Out(self.first(body), self.second(body))


def goes_back_twice() -> None:
    model = DistributedDataParallel(Two())
    torch.manual_seed(dist.get_rank())
    for _ in range(2):
        out = model(torch.randn(2, 3))
        out.first.sum().backward(retain_graph=True)
        model.zero_grad()
        out.second.square().sum().backward()
        assert all(torch.equal(*gathered(parameter.grad)) for parameter in model.module.second.parameters())


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


@pytest.mark.parametrize("check", [penalises_gradients, goes_back_twice, skips_the_model])
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


def test_a_batch_norm_under_two_names_stays_one() -> None:
    norm = nn.BatchNorm1d(3)
    model: Any = SyncBatchNorm.convert(nn.ModuleDict({"a": norm, "b": norm, "c": nn.Sequential(norm)}))
    assert isinstance(model["a"], SyncBatchNorm)
    assert model["a"] is model["b"] is model["c"][0]
