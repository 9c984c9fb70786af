"""Checkpoints of models with distributed modules: in parts, and as one process would save them."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch.model_parallel as smp


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.outer = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(F.gelu(self.inner(x)))


class Job:
    """A model of a new job, with its optimizer."""

    def __init__(self, **config: Any) -> None:
        smp.init({"ddp": True, "tensor_parallel_degree": 2, "microbatches": 2, **config})
        torch.manual_seed(4)
        model = Model()
        smp.set_tensor_parallelism(model.inner)
        self.model: Any = smp.DistributedModel(model)
        self.optimizer = smp.DistributedOptimizer(torch.optim.Adam(self.model.parameters(), lr=0.1))

        @smp.step
        def forward_backward(x: Tensor) -> Tensor:
            loss = self.model(x).square().mean()
            self.model.backward(loss)
            return loss

        self._step = forward_backward

    def train(self, *steps: int) -> dict[str, Tensor]:
        for step in steps:
            x = torch.randn(4, 6, generator=torch.Generator().manual_seed(10 * step + smp.dp_rank()))
            self.optimizer.zero_grad()
            self._step(x)
            self.optimizer.step()
        return {name: value.clone() for name, value in self.model.state_dict().items()}


def same(first: Any, second: Any) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def resumed(folder: Path, **config: Any) -> None:
    job = Job(**config)
    middle = job.train(0, 1)
    if smp.rdp_rank() == 0:
        smp.save_checkpoint(folder, "parts", model=job.model, optimizer=job.optimizer, user_content=5)
        smp.save_checkpoint(folder, "whole", partial=False, model=job.model)
    moments = copy.deepcopy(job.optimizer.state_dict())
    smp.barrier()
    names = {path.name for path in (folder / "parts_partial").iterdir()}
    pp = smp.pp_size()
    assert {f"model_{stage}_{slice_}.pt" for stage in range(pp) for slice_ in range(2)} <= names
    end = job.train(2)
    smp.shutdown()

    job = Job(**config)
    assert smp.resume_from_checkpoint(folder, tag="parts") == 5
    assert same(job.train(2), end)
    smp.shutdown()

    # In one process without slices, and back with the optimizer's whole state.
    whole = torch.load(folder / "whole")
    assert same(whole, middle) and whole["inner.weight"].shape == (8, 6)
    plain = Model()
    plain.load_state_dict(whole)
    torch.optim.Adam(plain.parameters()).load_state_dict(moments)
    # By index, as torch counts parameters: inner.weight is the first.
    assert moments["state"][0]["exp_avg"].shape == (8, 6)
    job = Job(**config)
    smp.resume_from_checkpoint(folder, tag="whole", partial=False)
    job.optimizer.load_state_dict(moments)
    assert same(job.train(2), end)
    smp.shutdown()


def on_two_ranks() -> None:
    resumed(Path(gettempdir()) / "smdp-slices")


def in_stages() -> None:
    resumed(Path(gettempdir()) / "smdp-slices-in-stages", partitions=2, auto_partition=True)


def test_on_two_ranks(tmp_path: Path) -> None:
    run(on_two_ranks, env={"TMPDIR": str(tmp_path)})


def test_in_stages(tmp_path: Path) -> None:
    run(in_stages, 4, env={"TMPDIR": str(tmp_path)})
