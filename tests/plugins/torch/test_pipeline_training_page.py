"""The page "Train a model that does not fit": what it shows runs, in its order."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch_spawn import run

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "pipeline_training.md").read_text(encoding="utf-8")
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))


def loss_fn(output: Tensor) -> Tensor:
    return output.square().mean()


def batch() -> Tensor:
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(0))


def run_snippets() -> None:
    import smdp.torch

    os.chdir(os.environ["SMDP_TEST_FOLDER"])
    step, memory, sampler, checkpoint = SNIPPETS[:4]
    names: dict[str, Any] = {
        "smdp": smdp,
        "torch": torch,
        "model": make_model(),
        "make_model": make_model,
        "batch": batch(),
        "loader": [batch(), batch()],
        "loss_fn": loss_fn,
        "dataset": range(8),
        "DistributedSampler": torch.utils.data.DistributedSampler,
    }
    exec(step, names)
    exec(memory, dict(names))
    exec(sampler, names)
    assert list(names["sampler"]) and len(names["sampler"]) == 8
    exec(checkpoint, names)
    saved = {name: value.clone() for name, value in names["pipe"].state_dict().items()}
    ranks: list[dict[str, Tensor]] = [{}] * 2
    dist.all_gather_object(ranks, saved)
    if dist.get_rank() == 0:
        torch.save({**ranks[0], **ranks[1]}, "whole")


def read_snippet() -> None:
    """In a process of its own: torch warns that it is alone."""
    names: dict[str, Any] = {"model": make_model()}
    os.chdir(os.environ["FOLDER"])
    with pytest.warns(UserWarning, match="single process"):
        exec(SNIPPETS[4], names)
    whole = torch.load("whole")
    assert all(torch.equal(value, whole[name]) for name, value in names["model"].named_parameters())


def test_snippets(tmp_path: Path) -> None:
    first, second = run(run_snippets, env={"SMDP_TEST_FOLDER": str(tmp_path)})
    assert len(first.split()) == 2, "a loss for each batch"
    assert first == second
    run(read_snippet, 1, init=False, env={"FOLDER": str(tmp_path)})
