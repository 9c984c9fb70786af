"""`offload_activations` moves what backward needs to a directory, cut or not; without one, a line tells."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import torch
from pipeline_models import Chain, adam, rows, square_loss
from torch import Tensor
from torch_spawn import run

import smdp.torch.model_parallel as smp
from smdp.torch.offload import offload_activations, saved_tensors
from smdp.torch.offload.pool_file import PoolFile
from smdp.torch.pipelining.engine import offload_actions


@smp.step
def train_step(model: Any, x: Tensor, y: Tensor) -> Tensor:
    loss = square_loss(model(x), {"y": y})
    model.backward(loss)
    return loss


def trained(**configuration: Any) -> list[Tensor]:
    smp.init({"partitions": 2, "microbatches": 4, "ddp": True, **configuration})
    try:
        torch.manual_seed(0)
        model = smp.DistributedModel(Chain()).to("cpu")
        optimizer = smp.DistributedOptimizer(adam(model))
        for batch in rows(2):
            optimizer.zero_grad()
            train_step(model, batch["x"], batch["y"])
            optimizer.step()
        return [parameter.detach().clone() for parameter in model.local_parameters()]
    finally:
        smp.shutdown()


class Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


def check() -> None:
    saved_tensors.LEAST_BYTES = offload_actions.LEAST_BYTES = 1  # type: ignore[attr-defined]
    offload_activations.offload_activations.__kwdefaults__["least_bytes"] = 1
    written = []
    write = PoolFile.write
    PoolFile.write = lambda *given: written.append(1) or write(*given)  # type: ignore[assignment, func-returns-value, method-assign]
    lines = Lines()
    logging.getLogger("smdp").addHandler(lines)
    folder = Path(os.environ["SMDP_TEST_STORE"] + ".pool")
    folder.mkdir(exist_ok=True)
    for partitions in (2, 1):
        expected = trained(partitions=partitions)
        assert not written
        found = trained(
            partitions=partitions,
            offload_activations=True,
            activation_loading_horizon=1,
            offload_directory=str(folder),
        )
        assert written or (partitions, os.environ["RANK"]) == (2, "1")  # whose backward follows at once
        assert all(map(torch.equal, found, expected))
        written.clear()
    assert list(folder.iterdir()) == []
    assert not any("has no effect" in line for line in lines.found)
    trained(offload_activations=True)
    assert sum("offload_activations has no effect" in line for line in lines.found) == 1
    assert not written


def test_a_directory_makes_activations_leave_memory() -> None:
    run(check)
