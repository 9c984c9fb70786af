"""CUDA tensors, staged through pinned host memory; two processes may share one GPU."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_spawn import run

import smdp.torch
from smdp import _core
from smdp.torch.process_group.tensors import DTYPES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def take_device() -> torch.device:
    device = torch.device("cuda", dist.get_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def late(device: torch.device) -> Tensor:
    """Ones times the rank's number, from 1; the kernels that make them are still running."""
    tensor = torch.ones(1000, 1000, device=device) * (dist.get_rank() + 1)
    for _ in range(20):
        tensor = tensor @ torch.eye(1000, device=device)
    return tensor


def all_reduces() -> None:
    device = take_device()
    for step in range(5):
        tensor = late(device)
        work = dist.all_reduce(tensor, async_op=step % 2 == 0)
        if work is not None:
            work.wait()
        assert (tensor == 3).all()
    future = dist.all_reduce(torch.ones(7, device=device), async_op=True).get_future()
    assert (future.then(lambda done: done.value()[0] * 2).wait() == 4).all()
    with torch.cuda.stream(torch.cuda.Stream()):
        tensor = late(device)
        dist.all_reduce(tensor)
        assert (tensor == 3).all()


def polled_and_dropped() -> None:
    device = take_device()
    tensor = late(device)
    work = dist.all_reduce(tensor, async_op=True)
    deadline = time.monotonic() + 30
    while not work.is_completed():
        assert time.monotonic() < deadline
    assert (tensor == 3).all()
    kept = late(device)
    dist.all_reduce(kept, async_op=True)  # its Work is dropped
    dist.barrier()
    deadline = time.monotonic() + 30
    while not (kept == 3).all():
        assert time.monotonic() < deadline
    with torch.inference_mode():
        future = dist.all_reduce(late(device), async_op=True).get_future()
    assert (future.wait()[0] == 3).all()


def returns_at_once() -> None:
    """Before the kernels that make its values have run."""
    device = take_device()
    tensor = late(device)
    torch.cuda.synchronize()
    for _ in range(2000):
        tensor = tensor @ torch.eye(1000, device=device)
    work = dist.all_reduce(tensor, async_op=True)
    is_done = work.is_completed()
    is_computed = torch.cuda.current_stream().query()
    work.wait()
    assert (tensor == 3).all()
    assert not is_done and not is_computed


def odd_tensors() -> None:
    device = take_device()
    gathered = [torch.empty(3, 2, device=device).t() for _ in range(2)]
    dist.all_gather(gathered, torch.full((2, 3), float(dist.get_rank()), device=device))
    for other, part in enumerate(gathered):
        assert (part == other).all()
    values = torch.full((1000,), 1.0 + 2.0j * (dist.get_rank() + 1), device=device)
    dist.all_reduce(conjugate := values.conj())
    assert (conjugate == 2.0 - 6.0j).all()
    dist.all_reduce(negative := torch._neg_view(late(device)))
    assert (negative == -3).all()
    torch.set_default_device(device)
    dist.all_reduce(tensor := late(device))
    dist.all_reduce(host := torch.ones(3, 4, device="cpu").t())
    assert (tensor == 3).all()
    assert (host == 2).all()


def captured() -> None:
    device = take_device()
    tensor = torch.ones(7, device=device)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="during the capture of a CUDA graph"), torch.cuda.graph(graph):
        dist.all_reduce(tensor)


def trained(wrap: Callable[[nn.Module], nn.Module], *, half: bool) -> list[Tensor]:
    """Parameters after some steps on this rank's half of the batches."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 8)).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda", enabled=half)
    for step in range(8):
        batch = torch.randn(16, 64, generator=torch.Generator().manual_seed(step)).cuda()
        part = batch if model.__class__ is nn.Sequential else batch[dist.get_rank() :: 2]
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.float16, enabled=half):
            loss = model(part).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return list(model.parameters())


def training() -> None:
    take_device()
    for half, tolerance in ((False, 1e-5), (True, 1e-2)):
        alone = trained(lambda model: model, half=half)
        wrappers: list[Callable[[nn.Module], nn.Module]] = [
            lambda model: DistributedDataParallel(model, bucket_cap_mb=0.01),
            smdp.torch.DistributedDataParallel,
            lambda model: smdp.torch.DistributedDataParallel(model, compression="bf16"),
        ]
        for wrap, bound in zip(wrappers, (tolerance, tolerance, 1e-2), strict=True):
            for ours, expected in zip(trained(wrap, half=half), alone, strict=True):
                torch.testing.assert_close(ours, expected, rtol=0, atol=bound)


def batch_norm() -> None:
    """Forward, backward and running statistics of the global batch, of which the ranks have 5 and 3 rows."""
    device = take_device()
    begin, end = ((0, 5), (5, 8))[dist.get_rank()]
    for shape, layer in (((6,), nn.BatchNorm1d), ((6, 5, 4), nn.BatchNorm2d)):
        torch.manual_seed(0)
        alone = nn.Sequential(nn.Flatten(0, 0), layer(6, momentum=0.2), nn.Tanh()).to(device)
        synced = smdp.torch.SyncBatchNorm.convert(copy.deepcopy(alone))
        for step in range(3):
            generator = torch.Generator().manual_seed(step)
            batch = (1 + 3 * torch.randn(8, *shape, generator=generator)).to(device)
            factors = torch.randn(8, *shape, generator=generator).to(device)
            whole = batch.clone().requires_grad_()
            part = batch[begin:end].clone().requires_grad_()
            expected = alone(whole)
            (expected * factors).sum().backward()
            output = synced(part)
            (output * factors[begin:end]).sum().backward()
            assert whole.grad is not None
            torch.testing.assert_close(output, expected[begin:end], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(part.grad, whole.grad[begin:end], atol=1e-5, rtol=1e-5)
        for mine, theirs in zip(synced.buffers(), alone.buffers(), strict=True):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
        for mine, theirs in zip(synced.parameters(), alone.parameters(), strict=True):
            assert mine.grad is not None
            dist.all_reduce(total := mine.grad.clone())
            torch.testing.assert_close(total, theirs.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "function",
    [all_reduces, polled_and_dropped, returns_at_once, odd_tensors, captured, training, batch_norm],
)
def test_cuda(function: Callable[[], None]) -> None:
    run(function, 2)


def compressed() -> None:
    """Every wire type under a scaler that is followed, also of a copy."""
    device = take_device()
    for wire in ("fp16", "bf16", "int8", "topk"):
        torch.manual_seed(0)
        linear = nn.Linear(64, 8, device=device)
        model = smdp.torch.DistributedDataParallel(linear, compression=wire, topk_ratio=0.2)
        for is_copy in (False, True):
            model = copy.deepcopy(model) if is_copy else model
            scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
            model.follow(scaler)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            for step in range(4):
                generator = torch.Generator().manual_seed(2 * step + dist.get_rank())
                batch = torch.randn(16, 64, generator=generator).to(device)
                optimizer.zero_grad()
                scaler.scale(model(batch).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update(512.0 if step == 1 else None)
            for parameter in model.parameters():
                everywhere = [torch.empty_like(parameter) for _ in range(dist.get_world_size())]
                dist.all_gather(everywhere, parameter.detach())
                assert all(torch.equal(one, parameter) for one in everywhere), wire
                assert parameter.isfinite().all()


def test_compression_between_hosts() -> None:
    run(compressed, 2, hosts=[0, 1])


def by_the_reducer() -> None:
    """The core's reducer on memory of a device, as a framework without a reducer of its own drives it."""
    device = take_device()
    sizes = [1000, 3, 70_001, 0, 250, 2_000_000]
    group = dist.distributed_c10d._get_default_group().core
    described = [(f"layer{index}", size, DTYPES[torch.float32], "") for index, size in enumerate(sizes)]
    reducer = _core.GradientReducer(group, described)
    kept = torch.cuda.Stream()
    for step in range(4):
        with torch.cuda.stream(kept if step == 3 else torch.cuda.current_stream()):
            gradients = []
            for index, size in reversed(list(enumerate(sizes))):
                late(device)  # keeps the stream busy, so that the event counts
                gradient = torch.full((size,), float(dist.get_rank() + index + step), device=device)
                event = torch.cuda.current_stream().record_event()
                reducer.ready(index, gradient.data_ptr(), device.index, event.cuda_event)
                gradients.append((index, gradient))
            reducer.finish()
            if step == 0:
                reducer.wait()
            else:
                reducer.wait(device.index, torch.cuda.current_stream().cuda_stream)
            for index, gradient in gradients:
                assert (gradient == index + step + 0.5).all(), (step, index)


def test_the_core_reduces_what_is_on_a_device() -> None:
    run(by_the_reducer, 2)
    run(by_the_reducer, 2, hosts=[0, 1])


def on_one_device() -> None:
    take_device()
    dist.all_reduce(tensor := late(torch.device("cuda", dist.get_rank())), async_op=True).get_future().wait()
    assert (tensor == 3).all()
    dist.barrier()
    if dist.get_rank() == 1:
        assert not torch._C._cuda_hasPrimaryContext(0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_rank_has_no_memory_on_the_devices_of_others() -> None:
    run(on_one_device, 2)
