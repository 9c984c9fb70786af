"""Checkpoints of a sharded optimizer: other ranks, scopes and layouts go on with the same bits."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded_models import OPTIMIZERS
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.nn import Parameter
from torch.optim import Optimizer
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer
from smdp.torch.checkpoints import checkpoint


class Mixed(nn.Module):
    """Has parameters of several dtypes and memory orders, without dimensions, and without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 37)
        self.norm = nn.BatchNorm1d(37)
        self.conv = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        self.turned = Parameter(torch.randn(9, 37).t())
        self.low = nn.Linear(9, 11).bfloat16()
        self.scale = Parameter(torch.tensor(1.5))
        self.nothing = Parameter(torch.empty(0, 5))
        self.late = nn.Linear(11, 3)

    def forward(self, tokens: Tensor, images: Tensor) -> Tensor:
        hidden = self.norm(self.embedding(tokens)) @ self.turned
        hidden = self.low(hidden.bfloat16()).float()
        found = self.late(hidden) * self.scale + self.nothing.sum()
        return found.square().mean() + self.conv(images).square().mean()


def bits(tensor: Tensor) -> Tensor:
    """Tells zeros of different signs apart."""
    flat = tensor.detach().reshape(-1).clone()
    return flat.view(torch.uint8) if flat.numel() else flat


def make(name: str, scope: str | None, group: Any = None) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Mixed(), process_group=group)
    late = set(model.module.late.parameters())
    early = [one for one in model.parameters() if one not in late]
    heavy = [one for one in early if one.dim() > 1]
    optimizer = OPTIMIZERS[name](heavy)
    optimizer.add_param_group({"params": [one for one in early if one.dim() < 2], "lr": 3e-3})
    return model, optimizer if scope is None else ShardedOptimizer(optimizer, model, scope)


def thaw(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.add_param_group({"params": list(model.module.late.parameters()), "lr": 1e-3})


def train(model: nn.Module, optimizer: Optimizer, steps: range) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
        tokens = torch.randint(50, (6,), generator=generator)
        images = torch.randn(2, 3, 4, 4, generator=generator)
        optimizer.zero_grad()
        model(tokens, images).backward()
        optimizer.step()


def whole_state(optimizer: Optimizer, group: Any) -> dict[str, Any]:
    """Returns the state of an optimizer on all ranks of a group."""
    if not isinstance(optimizer, ShardedOptimizer):
        return optimizer.state_dict()
    first = 0 if group is None else dist.get_process_group_ranks(group)[0]
    optimizer.consolidate(to=first)
    box: list[Any] = [optimizer.state_dict() if dist.get_rank() == first else None]
    dist.broadcast_object_list(box, src=first, group=group)
    return box[0]


def everything(model: nn.Module, optimizer: Optimizer, group: Any = None) -> dict[str, Any]:
    """Returns all that training depends on, but for the state of a parameter without elements."""
    found = {name: bits(value) for name, value in model.module.state_dict().items()}
    state = whole_state(optimizer, group)
    numbered = [one for each in optimizer.param_groups for one in each["params"]]
    for number, entry in state["state"].items():
        if numbered[number].numel():
            for key, value in entry.items():
                found[f"{number} {key}"] = bits(value) if isinstance(value, Tensor) else value
    return found | {f"group {number}": options for number, options in enumerate(state["param_groups"])}


def expect_same(one: dict[str, Any], other: dict[str, Any], what: object) -> None:
    assert one.keys() == other.keys(), (what, one.keys() ^ other.keys())
    for key, value in one.items():
        is_same = torch.equal(value, other[key]) if isinstance(value, Tensor) else value == other[key]
        assert is_same, (what, key)


def trained(name: str, scope: str | None) -> tuple[nn.Module, Optimizer]:
    """Returns a model that has trained, thawed a part of itself, and trained on."""
    model, optimizer = make(name, scope)
    train(model, optimizer, range(2))
    thaw(model, optimizer)
    train(model, optimizer, range(2, 4))
    optimizer.param_groups[0]["lr"] /= 2
    return model, optimizer


def loaded(name: str, scope: str | None, folder: Path, group: Any) -> tuple[nn.Module, Optimizer]:
    model, optimizer = make(name, scope, group)
    thaw(model, optimizer)
    checkpoint.load(folder, model, optimizer)
    return model, optimizer


def reference(model: nn.Module, plain: Optimizer) -> dict[str, Any]:
    """Returns what torch's own state dicts restore, with the buffers of rank 0."""
    again, optimizer = make(name_of(plain), None)
    thaw(again, optimizer)
    box = [model.state_dict()]
    dist.broadcast_object_list(box)
    again.load_state_dict(box[0])
    optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
    return everything(again, optimizer)


def name_of(optimizer: Optimizer) -> str:
    inner = optimizer.inner if isinstance(optimizer, ShardedOptimizer) else optimizer
    return type(inner).__name__


def goes_on(found: tuple[nn.Module, Optimizer], saved: Path) -> None:
    """Training goes on as unsharded training does."""
    plain = loaded(name_of(found[1]), None, saved, None)
    for each in (found, plain):
        train(*each, range(4, 6))
    expect_same(everything(*found), everything(*plain), saved)


def resumes_anywhere() -> None:
    folder = Path(os.environ["SAVE"])
    everyone = None
    two, three, one = (dist.new_group(ranks) for ranks in ([0, 1], [0, 1, 2], [3]))
    targets = {
        ("AdamW", "world"): [
            (everyone, "world"),
            (everyone, "host"),
            (everyone, None),
            (two, "host"),
            (three, "world"),
            (one, "world"),
            (one, None),
        ],
        ("AdamW", "host"): [(everyone, "world"), (three, "host")],
        ("AdamW", None): [(everyone, "world"), (one, "host")],
    }
    for name in ("NAdam", "ASGD", "Rprop", "Adagrad"):
        targets[name, "world"] = [(three, "world"), (one, None)]
    expected: dict[str, dict[str, Any]] = {}
    plain: dict[str, tuple[nn.Module, Optimizer]] = {}
    for (name, source), cases in targets.items():
        if name not in plain:
            plain[name] = trained(name, None)
            expected[name] = reference(*plain[name])
        model, optimizer = plain[name] if source is None else trained(name, source)
        expect_same(everything(model, optimizer), everything(*plain[name]), (name, source))
        saved = folder / f"{name} {source}"
        checkpoint.save(saved, model, optimizer)
        for group, target in cases:
            if dist.get_rank(group) >= 0:
                found = loaded(name, target, saved, group)
                expect_same(everything(*found, group), expected[name], (name, source, target))
                if group is everyone and target == source:
                    goes_on(found, saved)
        if dist.get_rank() == 0 and source is not None:
            torch_alone_reads(saved, *plain[name])
        dist.barrier()


def torch_alone_reads(saved: Path, model: nn.Module, plain: Optimizer) -> None:
    """A single process that does not know smdp reads whole tensors by name."""
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    expected = get_optimizer_state_dict(model, plain, options=options)
    state = {
        key: torch.full_like(value, 7) if isinstance(value, Tensor) else None
        for key, value in expected.items()
        if ".nothing." not in key
    }
    names = {name: torch.full_like(value, 7) for name, value in model.module.state_dict().items()}
    with pytest.warns(UserWarning, match="single process"):
        dcp.load({"optimizer": state, "model": names}, checkpoint_id=saved, no_dist=True)
    for found, wanted in ((state, expected), (names, model.module.state_dict())):
        for key, value in found.items():
            if isinstance(value, Tensor):
                assert torch.equal(bits(value), bits(wanted[key])), key
            else:
                assert value == wanted[key], key
    keys = dcp.FileSystemReader(saved).read_metadata().state_dict_metadata
    assert {key for key in keys if ".nothing." not in key} == {
        *(f"optimizer.{key}" for key in state),
        *(f"model.{key}" for key in names),
    }


def test_every_world_and_scope_resumes_with_the_same_bits(tmp_path: Path) -> None:
    run(resumes_anywhere, 4, hosts=[0, 0, 1, 1], env={"SAVE": str(tmp_path)})
