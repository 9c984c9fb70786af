"""Functional collectives, eager and compiled, and torch.compile of a DDP model."""

from __future__ import annotations

import shutil

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_spawn import run


def check_functional() -> None:
    size, rank = dist.get_world_size(), dist.get_rank()
    group = dist.group.WORLD
    assert group is not None
    mine = torch.full((2 * size, 3), float(rank + 1))
    total = size * (size + 1) / 2
    assert torch.equal(funcol.all_reduce(mine, "sum", group), torch.full_like(mine, total))
    assert torch.equal(funcol.all_reduce(mine, "avg", group), torch.full_like(mine, total / size))
    for reduced in funcol.all_reduce_coalesced([mine, mine[:1]], "sum", group):
        assert torch.equal(reduced, torch.full_like(reduced, total))
    gathered = funcol.all_gather_tensor(mine, 0, group)
    assert gathered[:: 2 * size, 0].tolist() == [float(other + 1) for other in range(size)]
    assert funcol.all_gather_tensor(mine, 1, group).shape == (2 * size, 3 * size)
    for part in funcol.all_gather_into_tensor_coalesced([mine, mine[:1]], group):
        assert part[0, 0].item() == 1
    scattered = funcol.reduce_scatter_tensor(mine, "sum", 0, group)
    assert torch.equal(scattered, torch.full((2, 3), total))
    for part in funcol.reduce_scatter_tensor_coalesced([mine, mine], "sum", [0, 0], group):
        assert torch.equal(part, torch.full((2, 3), total))
    exchanged = funcol.all_to_all_single(mine, None, None, group)
    assert exchanged[::2, 0].tolist() == [float(other + 1) for other in range(size)]
    assert torch.equal(funcol.broadcast(mine, 0, group), torch.ones_like(mine))
    imaginary = torch.complex(mine, mine)
    assert torch.equal(funcol.all_reduce(imaginary, "sum", group).real, torch.full_like(mine, total))
    permuted = funcol.permute_tensor(mine[:, 0], [(other + 1) % size for other in range(size)], group)
    assert permuted[0].item() == (rank - 1) % size + 1


def check_compiled_collectives() -> None:
    group = dist.group.WORLD

    @torch.compile(fullgraph=True)
    def step(x: Tensor) -> Tensor:
        return funcol.all_reduce(x * 2, "sum", group) + funcol.all_gather_tensor(x, 0, group).sum()

    x = torch.ones(4)
    size = dist.get_world_size()
    assert torch.equal(step(x), torch.full((4,), 2.0 * size + 4.0 * size))


def check_compiled_ddp() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    eager = DistributedDataParallel(net)
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(dist.get_rank()))
    eager(x).square().mean().backward()
    expected = [parameter.grad.clone() for parameter in net.parameters()]
    net.zero_grad(set_to_none=True)
    compiled = torch.compile(DistributedDataParallel(net))
    for _ in range(2):
        net.zero_grad(set_to_none=True)
        compiled(x).square().mean().backward()
        for parameter, want in zip(net.parameters(), expected, strict=True):
            torch.testing.assert_close(parameter.grad, want)


def compiled() -> None:
    check_compiled_collectives()
    check_compiled_ddp()


def test_functional_collectives() -> None:
    run(check_functional, 2)


@pytest.mark.timeout(300)
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs g++")
def test_torch_compile() -> None:
    run(compiled, 2, timeout=280)
