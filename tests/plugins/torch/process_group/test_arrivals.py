"""Asynchronous operations on values that are still on their way from a device."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from late_values import late_values
from pretended_device import on_a_device
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_spawn import run

import smdp
from smdp.torch import comm_hook


def check_calls() -> None:
    rank = dist.get_rank()
    with late_values() as staging:
        total, parts, part = torch.full((5,), rank + 1.0), torch.zeros(6), torch.zeros(2)
        pieces = [torch.zeros(2), torch.zeros(2)]
        works = [
            dist.all_reduce(total, async_op=True),
            dist.all_gather_into_tensor(parts, torch.full((3,), float(rank)), async_op=True),
            dist.reduce_scatter_tensor(part, torch.arange(4.0), async_op=True),
            dist.all_gather(pieces, torch.full((2,), float(rank)), async_op=True),
            dist.reduce_scatter(scattered := torch.zeros(1), [torch.ones(1), torch.ones(1)], async_op=True),
        ]
        assert [work.is_completed() for work in works] == [False] * 5, "no value is there yet"
        staging.gate.set()
        for work in works:
            work.wait()
        assert staging.threads == ["smdp-arrivals"] * 5
        dist.all_reduce(again := torch.ones(3))  # a blocking call waits for them itself
        assert staging.threads[5:] == ["MainThread"]
    assert total.tolist() == [3.0] * 5
    assert parts.tolist() == [0.0] * 3 + [1.0] * 3
    assert part.tolist() == [4.0 * rank, 4.0 * rank + 2.0]
    assert [piece.tolist() for piece in pieces] == [[0.0] * 2, [1.0] * 2]
    assert scattered.tolist() == [2.0]
    assert again.tolist() == [2.0] * 3


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_calls_return_before_values_are_there(hosts: list[int] | None) -> None:
    run(check_calls, hosts=hosts)


class Opens(torch.autograd.Function):
    """Opens the gate when backward passes, behind the layers that come before in it."""

    gate = None

    @staticmethod
    def forward(ctx: object, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        assert Opens.gate is not None
        Opens.gate.set()
        return gradient


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList(nn.Linear(100, 100) for _ in range(4))

    def forward(self, rows: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            rows = torch.tanh(layer(rows))
            if number == 0 and Opens.gate is not None:
                rows = Opens.apply(rows)
        return rows


def trained(wire: str | None, dtype: torch.dtype) -> list[Tensor]:
    """Parameters after some steps; buckets are 40 KB, so three of four come before the gate opens."""
    model = Model().to(dtype)
    if wire is None:
        ddp: nn.Module = on_a_device(model, bucket_cap_mb=0.03)
    else:
        ddp = DistributedDataParallel(model, bucket_cap_mb=0.03)
        ddp.register_comm_hook(None, comm_hook(wire))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    for step in range(4):
        generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
        optimizer.zero_grad()
        loss = ddp(torch.randn(8, 100, generator=generator).to(dtype)).square().mean()
        if Opens.gate is not None:
            Opens.gate.clear()
        loss.backward()
        optimizer.step()
    return [parameter.detach() for parameter in ddp.parameters()]


def check_backward() -> None:
    """A backward that waited for the values of its first bucket would never open the gate."""
    for wire in (None, "none", "bf16", "int8"):
        for dtype in (torch.float32, torch.bfloat16):
            plain = trained(wire, dtype)
            with late_values() as staging:
                Opens.gate = staging.gate
                Opens.gate.set()
                late = trained(wire, dtype)
                Opens.gate = None
            assert "smdp-arrivals" in staging.threads
            for ours, theirs in zip(late, plain, strict=True):
                assert torch.equal(ours, theirs), (wire, dtype)


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_backward_goes_on_while_buckets_are_on_their_way(hosts: list[int] | None) -> None:
    run(check_backward, hosts=hosts)


def check_memory() -> None:
    """Of an operation that has failed: copies may still write there."""
    with late_values() as staging:
        work = dist.all_reduce(torch.ones(3), async_op=True)
        held = weakref.ref(work._keep)
        dist.group.WORLD.core.abort("in the middle")
        with pytest.raises(smdp.SmdpError, match="in the middle"):
            work.wait()
        del work
        gc.collect()
        assert held() is not None
        staging.gate.set()
        deadline = time.monotonic() + 10
        while held() is not None:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_memory_is_held_until_copies_are_over() -> None:
    run(check_memory, 1)


def check_dropped() -> None:
    with late_values() as staging:
        dist.all_reduce(
            total := torch.full((3,), dist.get_rank() + 1.0), async_op=True
        )  # its Work is dropped
        gc.collect()
        staging.gate.set()
        deadline = time.monotonic() + 10
        while total.tolist() != [3.0] * 3:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_a_work_may_be_dropped() -> None:
    run(check_dropped)


def check_steps() -> None:
    """What a device computes is computing, not communication, also where its backward is only launched."""
    with late_values() as staging:
        staging.gate.set()
        ddp = DistributedDataParallel(nn.Linear(10, 10))
        ddp.register_comm_hook(None, comm_hook("none"))
        for _ in range(4):
            loss = ddp(torch.ones(2, 10)).sum()
            staging.gate.clear()
            timer = threading.Timer(0.2 + 0.2 * dist.get_rank(), staging.gate.set)
            timer.start()
            loss.backward()
    stats = smdp.stats()
    assert stats["steps"] == 4
    assert 3 * 0.15 < stats["rank_seconds"][0] < stats["rank_seconds"][1], stats
    assert stats["slowest_rank"] == 1
    # Rank 0 waits for rank 1, not for its own device.
    assert stats["exposed_seconds"] < (1.4 if dist.get_rank() == 0 else 0.6), stats


def test_a_device_that_computes_is_no_slow_network() -> None:
    run(check_steps)


def check_failed_copy() -> None:
    with late_values() as staging:
        staging.gate.set()
        if dist.get_rank() == 1:
            staging.error = RuntimeError("CUDA error: an illegal memory access was encountered")
        begin = time.monotonic()
        with pytest.raises(smdp.SmdpError, match=r"from their device failed: CUDA error") as found:
            dist.all_reduce(torch.ones(3), async_op=True).wait()
        assert "rank 1 of 2" in str(found.value)
        assert time.monotonic() - begin < 5


def test_a_copy_that_fails_is_told_to_all() -> None:
    run(check_failed_copy)
