"""Checkpoints of models in shards load into shards of any degree, into whole models, and back."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from block_models import Model, loss_of, whole
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_state_dict
from torch.optim import Optimizer
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedDataParallel
from smdp.torch.checkpoints import checkpoint

HAS_SAFETENSORS = importlib.util.find_spec("safetensors") is not None


def made(degree: int | None, threshold: int = 0) -> tuple[ShardedDataParallel, Optimizer]:
    torch.manual_seed(dist.get_rank())
    model = ShardedDataParallel(Model(), degree, persistence_threshold=threshold)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        loss_of(model, step, 0).backward()  # the same batch on all ranks, however many there are
        optimizer.step()
        optimizer.zero_grad()


def folder() -> Path:
    return Path(os.environ["SMDP_TEST_FOLDER"])


def save() -> None:
    model, optimizer = made(2, 65)
    train(model, optimizer, range(2))
    checkpoint.save(folder() / "own", model, optimizer)
    if HAS_SAFETENSORS:
        checkpoint.save_safetensors(folder() / "files", model)
    weights, states = get_state_dict(model.module, optimizer)
    dcp.save({"weights": weights, "states": states}, checkpoint_id=folder() / "torch")
    full = get_model_state_dict(model.module, options=StateDictOptions(full_state_dict=True))
    full = {name: value.clone() for name, value in full.items()}  # whole parameters share their memory
    train(model, optimizer, range(2, 4))
    final = {name: whole(value) for name, value in model.module.state_dict().items() if name != "seen"}
    if dist.get_rank() == 0:
        torch.save((full, final), folder() / "expected.pt")


def load() -> None:
    full, final = torch.load(folder() / "expected.pt")
    plain = DistributedDataParallel(Model())
    for model, optimizer in (made(None), (plain, torch.optim.AdamW(plain.parameters(), lr=1e-2))):
        checkpoint.load(folder() / "own", model, optimizer)
        train(model, optimizer, range(2, 4))
        found = model.module.state_dict()
        for name, value in final.items():
            torch.testing.assert_close(whole(found[name]), value, atol=1e-5, rtol=0)
    model, optimizer = made(None)
    for kind in ("files", "torch", "full") if HAS_SAFETENSORS else ("torch", "full"):
        with torch.no_grad():
            for one in model.parameters():
                one.zero_()
        if kind == "files":
            checkpoint.load_safetensors(folder() / kind, model)
        elif kind == "torch":
            weights = model.module.state_dict()
            dcp.load({"weights": weights}, checkpoint_id=folder() / kind)
        else:
            model.module.load_state_dict(full)
        for name, value in model.module.named_parameters():
            assert torch.equal(whole(value), full[name])


def test_any_degree(tmp_path: Path) -> None:
    env = {"SMDP_TEST_FOLDER": str(tmp_path)}
    run(save, 4, env=env)
    run(load, 2, env=env)
    run(load, 1, env=env)
