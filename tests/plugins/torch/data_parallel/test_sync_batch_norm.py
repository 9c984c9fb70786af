"""Batch norm over the global batch against one process that has all of it."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch_spawn import run

from smdp.torch import SyncBatchNorm


def check_against_one_process() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    rows = [3, 5, 4][:size]  # uneven
    kinds = (((6,), nn.BatchNorm1d), ((6, 5, 4), nn.BatchNorm2d))
    # Sums over a batch around 100 lose digits of float32 in one process, too.
    precisions = (
        (torch.float32, 100, 1e-5, 1e-4),
        (torch.float32, 1, 1e-5, 1e-5),
        (torch.float64, 100, 1e-10, 1e-10),
    )
    for (shape, layer), (dtype, middle, near, near_sums) in itertools.product(kinds, precisions):
        torch.manual_seed(0)
        alone = nn.Sequential(nn.Flatten(0, 0), layer(6, momentum=0.2), nn.Tanh()).to(dtype)
        synced = SyncBatchNorm.convert(copy.deepcopy(alone))
        assert list(synced.state_dict()) == list(alone.state_dict())
        for step in range(3):
            torch.manual_seed(step)
            batch = middle + 3 * torch.randn(sum(rows), *shape, dtype=dtype)
            factors = torch.randn(sum(rows), *shape, dtype=dtype)
            whole = batch.clone().requires_grad_()
            expected = alone(whole)
            (expected * factors).sum().backward()
            begin = sum(rows[:rank])
            part = batch[begin : begin + rows[rank]].clone().requires_grad_()
            output = synced(part)
            (output * factors[begin : begin + rows[rank]]).sum().backward()
            assert whole.grad is not None and part.grad is not None
            torch.testing.assert_close(output, expected[begin : begin + rows[rank]], atol=near, rtol=near)
            torch.testing.assert_close(
                part.grad, whole.grad[begin : begin + rows[rank]], atol=near, rtol=near
            )
        for mine, theirs in zip(synced.buffers(), alone.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, atol=near, rtol=near)
        for mine, theirs in zip(synced.parameters(), alone.parameters(), strict=True):
            assert mine.grad is not None
            total = mine.grad.clone()
            dist.all_reduce(total)
            torch.testing.assert_close(total, theirs.grad, atol=near_sums, rtol=near_sums)
        torch.testing.assert_close(synced.eval()(batch), alone.eval()(batch))


def check_a_mean_far_above_the_spread() -> None:
    """As near to float64 as one process in float32."""
    rank = dist.get_rank()
    torch.manual_seed(3)
    for middle, spread in ((100.0, 3.0), (1000.0, 1.0)):
        batch = middle + spread * torch.randn(8, 6, 5, 4)
        whole = nn.BatchNorm2d(6).double()(batch.double())
        alone = nn.BatchNorm2d(6)(batch)
        begin, end = ((0, 6), (6, 7), (7, 8))[rank]
        output = SyncBatchNorm(6)(batch[begin:end])
        own = (output - whole[begin:end]).abs().max()
        assert own <= max(1e-5, 1.5 * float((alone - whole).abs().max())), (middle, own)


def check_inputs() -> None:
    layer = SyncBatchNorm(4)
    for training in (True, False):
        with pytest.raises(ValueError, match=r"has 4 channels, but the input of shape \[2, 3\] has 3"):
            layer.train(training)(torch.zeros(2, 3))
    layer.train()
    # As torch.nn.BatchNorm1d on an empty batch.
    none = torch.zeros(0, 4, requires_grad=True)
    layer(none).sum().backward()
    assert none.grad is not None and none.grad.shape == (0, 4)
    assert layer.running_mean is not None and layer.running_mean.eq(0).all()
    count = 3 * dist.get_rank()  # none on rank 0
    assert layer(torch.ones(count, 4)).shape == (count, 4)
    torch.testing.assert_close(layer.running_mean, torch.full((4,), 0.1))
    with pytest.raises(ValueError, match=r"got torch\.int64; it needs a floating-point"):
        layer(torch.ones(2, 4, dtype=torch.int64))
    half = SyncBatchNorm.convert(nn.BatchNorm1d(3, bias=False))
    rows = torch.arange(6.0).view(2, 3) + 10 * dist.get_rank()
    assert half.bias is None and SyncBatchNorm(3, bias=False).bias is None
    whole = torch.cat([torch.arange(6.0).view(2, 3) + 10 * rank for rank in range(2)])
    expected = nn.BatchNorm1d(3, bias=False)(whole)[2 * dist.get_rank() :][:2]
    torch.testing.assert_close(half(rows), expected)
    free = SyncBatchNorm(1, affine=False, track_running_stats=False)  # keeps nothing by channel
    assert free(torch.ones(2, 3)).shape == (2, 3)


class Activated(nn.BatchNorm2d):
    """As timm has them."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input).relu()


def test_what_convert_takes() -> None:
    with pytest.raises(ValueError, match="got Activated, a batch norm that overrides forward"):
        SyncBatchNorm.convert(nn.Sequential(nn.Linear(2, 2), Activated(2)))
    with pytest.raises(TypeError, match=r"got a int in place of a torch\.nn\.Module"):
        SyncBatchNorm.convert(3)  # type: ignore[arg-type]
    assert type(SyncBatchNorm.convert(nn.SyncBatchNorm(2))) is SyncBatchNorm
    lazy = nn.Sequential(nn.LazyInstanceNorm2d())
    assert SyncBatchNorm.convert(lazy)[0] is lazy[0]


def test_inputs() -> None:
    run(check_inputs, 2)


def test_equals_one_process_on_the_global_batch() -> None:
    run(check_against_one_process, 3)


def test_a_mean_far_above_the_spread() -> None:
    run(check_a_mean_far_above_the_spread, 3)


def penalty(layer: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    """Give the weight's gradient of a penalty for gradients."""
    rows = rows.clone().requires_grad_()
    (grad,) = torch.autograd.grad(layer(rows).pow(3).sum(), rows, create_graph=True)
    grad.square().sum().backward()
    assert layer.weight.grad is not None
    return layer.weight.grad


def check_second_derivative() -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    batch = torch.randn(4 * size, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    alone = nn.BatchNorm1d(3).double()
    total = penalty(SyncBatchNorm.convert(copy.deepcopy(alone)), batch[4 * rank : 4 * rank + 4])
    dist.all_reduce(total)
    torch.testing.assert_close(total, penalty(alone, batch))


def test_second_derivative() -> None:
    run(check_second_derivative, 2)
