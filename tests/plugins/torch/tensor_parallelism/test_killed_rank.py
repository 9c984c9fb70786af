"""After kill -9 of a rank with slices of a model, all other ranks raise an error that names it."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist
from divided_models import PLAN, VOCABULARY, Model, loss_of
from torch import Tensor
from torch_spawn import run

import smdp.torch

VICTIM, DEGREE = 1, "SMDP_TEST_DEGREE"


def kill(gradient: Tensor) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stay() -> None:
    """Waits for the other ranks, which would else hear of this one's end."""
    store = dist.distributed_c10d._get_default_store()
    store.set(f"over/{dist.get_rank()}", "")
    store.wait([f"over/{rank}" for rank in range(dist.get_world_size()) if rank != VICTIM])


def train_until_a_rank_dies() -> None:
    model = smdp.torch.tensor_parallel(Model(), int(os.environ[DEGREE]), PLAN)
    trained = smdp.torch.DistributedDataParallel(model) if int(os.environ[DEGREE]) < 4 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tokens = torch.arange(14).view(2, 7) % VOCABULARY

    def step() -> None:
        optimizer.zero_grad()
        loss_of(trained, tokens).backward()
        optimizer.step()

    for _ in range(3):
        step()
    if dist.get_rank() == VICTIM:
        # In the middle of backward, when its peers wait for its part of a sum.
        model.blocks[1].up.weight.register_hook(kill)
    dist.barrier()
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=rf"\brank {VICTIM}(?: of the world, | \()host \S+\) died"):
        step()
    took = time.monotonic() - started
    assert took < 5, took
    stay()


@pytest.mark.parametrize("degree", [2, 4])
def test_all_others_raise(degree: int) -> None:
    """Also the ranks of the other replica, which share no slices with it."""
    run(train_until_a_rank_dies, 4, env={DEGREE: str(degree)}, exits={VICTIM: -signal.SIGKILL})
