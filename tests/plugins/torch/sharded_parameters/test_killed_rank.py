"""A rank that dies in the middle of backward ends the step of all others, in whichever shards they are."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from block_models import Model, loss_of
from torch_spawn import run

from smdp.torch import ShardedDataParallel

VICTIM = 3


def kill(*unused: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def train_until_a_rank_dies() -> None:
    torch.manual_seed(0)
    model = ShardedDataParallel(Model(), 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(number: int) -> None:
        loss_of(model, number, dist.get_rank()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for number in range(3):
        step(number)
    if dist.get_rank() == VICTIM:
        model.module.blocks[1].register_full_backward_hook(kill)
    dist.barrier()
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"\brank {VICTIM}(?: of the world, | \()host \S+\) died"):
        step(3)
    took = time.monotonic() - started
    assert took < 5, took
    # The end of this rank would end the others with another message.
    store = dist.distributed_c10d._get_default_store()
    store.set(f"over/{dist.get_rank()}", "")
    store.wait([f"over/{rank}" for rank in range(dist.get_world_size()) if rank != VICTIM])


def test_all_others_raise() -> None:
    run(train_until_a_rank_dies, 4, exits={VICTIM: -signal.SIGKILL})
