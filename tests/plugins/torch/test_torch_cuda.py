"""CUDA tensors, staged through pinned host memory; two processes may share one GPU."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch_spawn import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def cuda() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    for step in range(5):
        # The kernels that make the values are still running when the call comes.
        tensor = torch.ones(1000, 1000, device=device) * (rank + 1)
        for _ in range(20):
            tensor = tensor @ torch.eye(1000, device=device)
        work = dist.all_reduce(tensor, async_op=step % 2 == 0)
        if work is not None:
            work.wait()
        assert (tensor == size * (size + 1) / 2).all()
    future = dist.all_reduce(torch.ones(7, device=device), async_op=True).get_future()
    assert (future.then(lambda done: done.value()[0] * 2).wait() == 2 * size).all()
    gathered = [torch.empty(3, 2, device=device).t() for _ in range(size)]
    dist.all_gather(gathered, torch.full((2, 3), float(rank), device=device))
    for other, part in enumerate(gathered):
        assert (part == other).all()
    net = DistributedDataParallel(nn.Linear(64, 64).to(device), bucket_cap_mb=0.001)
    net(torch.full((4, 64), float(rank), device=device)).sum().backward()
    for parameter in net.parameters():
        assert parameter.grad is not None
        expected = parameter.grad.clone()
        dist.broadcast(expected, 0)
        assert torch.equal(parameter.grad, expected)


def test_cuda() -> None:
    run(cuda, 2)
