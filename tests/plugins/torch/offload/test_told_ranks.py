"""A rank whose disk is full tells the ranks that train with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from divided_models import PLAN, Model, loss_of
from torch import nn
from torch_spawn import run

import smdp.torch
from smdp.torch.offload import pool_file

WIDTH, ROWS, BLOCKS = 64, 128, 6


def offloaded(model: nn.Module, folder: str, limit: str) -> nn.Module:
    """Returns a model in which all saved tensors leave; the file of rank 1 is bounded."""
    small = f"?limit={limit}" if dist.get_rank() == 1 else ""
    return smdp.torch.offload_activations(model, f"disk:{folder}{small}", 1, least_bytes=1)


def raises_everywhere(step: Callable[[], None], folder: str) -> None:
    folders = [""] * dist.get_world_size()
    dist.all_gather_object(folders, folder)
    with pytest.raises(Exception, match=r"needs .* more bytes, and .* are there") as error:
        step()
    assert f"offload to {folders[1]} needs" in str(error.value)
    dist.barrier()  # no rank has to end for that


def in_forward() -> None:
    """Each rank has its own directory, so that the message shows whose disk is full."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)))
        model = smdp.torch.DistributedDataParallel(offloaded(blocks, folder, "64K"))
        raises_everywhere(lambda: model(torch.randn(ROWS, WIDTH)).sum().backward(), folder)


def in_shards() -> None:
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)))
        model = smdp.torch.ShardedDataParallel(offloaded(blocks, folder, "64K"))
        raises_everywhere(lambda: model(torch.randn(ROWS, WIDTH)).sum().backward(), folder)


def in_backward() -> None:
    """A file that another process has shortened cannot be read."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        blocks = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(BLOCKS)))
        offloaded(blocks, folder, "1G")
        model = smdp.torch.DistributedDataParallel(blocks)
        model(torch.randn(ROWS, WIDTH)).sum().backward()
        loss = model(torch.randn(ROWS, WIDTH)).sum()
        (pool,) = pool_file._pools.values()
        pool._writers.shutdown()  # once everything is in the file
        if dist.get_rank() == 1:
            os.truncate(f"/proc/self/fd/{pool._file}", 0)
        with pytest.raises(
            Exception, match=r"the file ends at \d+ bytes.*name a directory of this job alone"
        ):
            loss.backward()
        dist.barrier()


def of_slices() -> None:
    """The ranks of the other slices wait in sums over slices, and their replicas for averages."""
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        divided = offloaded(smdp.torch.tensor_parallel(Model(4), 2, PLAN), folder, "8K")
        model = smdp.torch.DistributedDataParallel(divided)
        tokens = torch.randint(20, (4, 6))
        raises_everywhere(lambda: loss_of(model, tokens).backward(), folder)


@pytest.mark.parametrize(
    ("function", "ranks"), [(in_forward, 2), (in_shards, 2), (in_backward, 2), (of_slices, 4)]
)
def test_all_ranks_raise_the_reason(function: Callable[[], None], ranks: int) -> None:
    run(function, ranks)
