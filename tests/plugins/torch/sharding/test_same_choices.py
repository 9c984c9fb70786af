"""Ranks that create a sharded optimizer in different ways, or cannot create it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import adamw, backward, deep, sgd
from torch.optim import Optimizer
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel, ShardedOptimizer
from smdp.torch.sharding.sharded_state import ShardedState


def ranks_differ() -> None:
    """Rank 1 passes something else than rank 0, and both name it."""
    rank = dist.get_rank()
    model = DistributedDataParallel(deep())
    parameters = list(model.parameters())

    def halves(size: int) -> Optimizer:
        return sgd([{"params": parameters[:size]}, {"params": parameters[size:]}])

    def made(optimizer: Optimizer, **options: Any) -> ShardedOptimizer:
        return ShardedOptimizer(optimizer, model, **options)

    group = "in group 0"
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: made(torch.optim.SGD(parameters, lr=0.1 + rank)),
            rf"rank 0 has lr=0\.1 {group}, and rank 1 has lr=1\.1 {group}",
        ),
        (lambda: made(sgd(parameters[: 4 - rank])), r"groups of \[4\] .* groups of \[3\]"),
        (lambda: made(halves(2 - rank)), r"groups of \[2, 2\] .* groups of \[1, 3\]"),
        (lambda: made(sgd(parameters[:: 1 - 2 * rank])), "parameter '0.weight' at .* parameter '1.bias' at"),
        (lambda: made((sgd, adamw)[rank](parameters)), "class SGD, and rank 1 has .* class AdamW"),
        (lambda: made(sgd(parameters), master_dtype=(None, torch.float32)[rank]), "has master_dtype=None"),
        (lambda: made(sgd(parameters), overlap_forward=bool(rank)), "rank 1 has overlap_forward=True"),
    ]
    for make, words in cases:
        with pytest.raises(ValueError, match=words):
            make()
    # A check that fails on one rank does not leave the other one waiting.
    with pytest.raises((RuntimeError, ValueError)) as caught:
        made(sgd(parameters), scope="machine" if rank else "world")
    assert "ShardedOptimizer: scope is 'machine'" in str(caught.value)
    assert rank or "rank 1: " in str(caught.value)

    optimizer = made(sgd(parameters[:2]))
    with pytest.raises(ValueError, match=r"add_param_group\(\): rank 0 has lr=0\.1 .* lr=1\.1"):
        optimizer.add_param_group({"params": parameters[2:], "lr": 0.1 + rank})
    assert len(optimizer.param_groups) == 1
    optimizer.add_param_group({"params": parameters[2:], "lr": 0.1})
    backward(model)
    optimizer.step()


def creation_fails_on_one_rank() -> None:
    model = DistributedDataParallel(deep())
    with pytest.MonkeyPatch.context() as patch:
        if dist.get_rank() == 1:

            def fails(*_: object) -> None:
                raise MemoryError("out of memory")

            patch.setattr(ShardedState, "add", fails)
            with pytest.raises(MemoryError):
                ShardedOptimizer(sgd(model.parameters()), model)
        else:
            optimizer = ShardedOptimizer(sgd(model.parameters()), model)

            def train() -> None:
                backward(model)
                optimizer.step()

            with pytest.raises(smdp.SmdpError, match="could not be created: out of memory"):
                train()


def differs_and_fails() -> None:
    ranks_differ()
    creation_fails_on_one_rank()


def test_ranks_that_differ_are_refused() -> None:
    run(differs_and_fails)
