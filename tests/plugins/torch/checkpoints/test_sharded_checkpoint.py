"""Checkpoints of a sharded optimizer: other ranks, scopes and layouts go on with the same bits."""

from __future__ import annotations

import copy
import functools
import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from pipeline_models import Language, batches, language_loss, made
from sharded_models import OPTIMIZERS, adamw, backward, deep
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict
from torch.nn import Parameter
from torch.optim import Optimizer
from torch_spawn import run

import smdp.torch
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


def make(name: str, scope: str | None, group: Any = None, **options: bool) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = DistributedDataParallel(Mixed(), process_group=group)
    late = set(model.module.late.parameters())
    early = [one for one in model.parameters() if one not in late]
    heavy = [one for one in early if one.dim() > 1]
    optimizer = OPTIMIZERS[name](heavy)
    optimizer.add_param_group({"params": [one for one in early if one.dim() < 2], "lr": 3e-3})
    return model, optimizer if scope is None else ShardedOptimizer(optimizer, model, scope, **options)


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


def loaded(
    name: str, scope: str | None, folder: Path, group: Any = None, **options: bool
) -> tuple[nn.Module, Optimizer]:
    model, optimizer = make(name, scope, group, **options)
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
    """Training goes on as unsharded training does, also with what other options leave to be awaited."""
    plain = loaded(name_of(found[1]), None, saved)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shared = loaded(name_of(found[1]), "world", saved, share_parameters=True)
        overlapped = loaded(name_of(found[1]), "host", saved, overlap_forward=True)
        for each in (plain, found, shared, overlapped):
            train(*each, range(4, 6))
    checkpoint.save(saved / "again", *overlapped)
    for each in (found, shared, overlapped):
        expect_same(everything(*each), everything(*plain), saved)
    again = loaded(name_of(found[1]), None, saved / "again")
    if dist.get_rank() == 0:  # whose buffers are saved
        expect_same(everything(*again), everything(*plain), saved)


# The group and scope into which each checkpoint is loaded.
Cases = dict[tuple[str, str | None], list[tuple[Any, str | None]]]


def resumes_from(saved_by: Cases) -> None:
    """Saves what an optimizer of each name and scope has trained, and loads it in each of the cases."""
    folder = Path(os.environ["SAVE"])
    expected: dict[str, dict[str, Any]] = {}
    plain: dict[str, tuple[nn.Module, Optimizer]] = {}
    for (name, source), cases in saved_by.items():
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
                if group is None and target == source:
                    goes_on(found, saved)
        if dist.get_rank() == 0 and source is not None:
            torch_alone_reads(saved, *plain[name])
        dist.barrier()


def resumes_anywhere() -> None:
    two, three, one = (dist.new_group(ranks) for ranks in ([0, 1], [0, 1, 2], [3]))
    everyone = None
    resumes_from(
        {
            ("AdamW", "world"): [
                (everyone, "world"),
                (everyone, "host"),
                (three, "world"),
                (one, None),
            ],
            ("AdamW", "host"): [(everyone, "world"), (two, "host"), (one, "world")],
            ("AdamW", None): [(everyone, "world")],
        }
    )


def resumes_with_more_state() -> None:
    two, one = dist.new_group([0, 1]), dist.new_group([2])
    resumes_from(
        {(name, "world"): [(two, "world"), (one, None)] for name in ("NAdam", "ASGD", "Rprop", "Adagrad")}
    )


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


def grouped(module: nn.Module) -> Optimizer:
    own = list(module.parameters())
    heavy, light = ([one for one in own if (one.dim() > 1) == is_heavy] for is_heavy in (True, False))
    return torch.optim.AdamW([{"params": heavy, "weight_decay": 0.1}, {"params": light, "lr": 3e-3}], lr=1e-2)


def staged(is_sharded: bool) -> tuple[Any, Optimizer]:
    pipe = smdp.torch.pipeline(made(language), 2, 4)
    plain = grouped(pipe)
    return pipe, ShardedOptimizer(plain, pipe) if is_sharded else plain


def replicated(scope: str | None) -> tuple[Any, Optimizer]:
    model = DistributedDataParallel(made(language))
    plain = grouped(model)
    return model, plain if scope is None else ShardedOptimizer(plain, model, scope)


def language() -> nn.Module:
    return Language(4, tied=True)


def named(model: Any, optimizer: Optimizer) -> dict[str, Any]:
    """Returns the parameters and their state by name, whichever rank has them."""
    if isinstance(optimizer, ShardedOptimizer):
        optimizer.consolidate()
    names = {parameter: name for name, parameter in getattr(model, "module", model).named_parameters()}
    mine: dict[str, Any] = {names[one]: bits(one) for one in model.parameters()}
    first = dist.get_process_group_ranks(model.process_group)[0]
    if not isinstance(optimizer, ShardedOptimizer) or dist.get_rank() == first:
        numbered = [names[one] for group in optimizer.param_groups for one in group["params"]]
        for number, entry in optimizer.state_dict()["state"].items():
            mine |= {f"{numbered[number]} {key}": bits(value) for key, value in entry.items()}
    told: list[dict[str, Any]] = [{}] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    found: dict[str, Any] = {}
    for each in told:
        for key, value in each.items():
            assert torch.equal(found.setdefault(key, value), value), key
    return found


def changes_the_layout() -> None:
    """From data parallel to two stages of two replicas, and back."""
    folder = Path(os.environ["SAVE"])
    model, optimizer = replicated("world")
    for batch in batches(2, 8):
        optimizer.zero_grad()
        mine = {name: item.chunk(4)[dist.get_rank()] for name, item in batch.items()}
        language_loss(model(**mine), mine).backward()
        optimizer.step()
    expected = named(model, optimizer)
    assert "words.weight exp_avg_sq" in expected
    checkpoint.save(folder / "data parallel", model, optimizer)
    for is_sharded in (True, False):
        pipe, its = staged(is_sharded)
        checkpoint.load(folder / "data parallel", pipe, its)
        expect_same(named(pipe, its), expected, is_sharded)
        if is_sharded:
            its.zero_grad()
            part = {name: item.chunk(2)[pipe.mesh.replica] for name, item in batches(3, 8)[2].items()}
            pipe.train_step(part, language_loss)
            its.step()
            checkpoint.save(folder / "stages", pipe, its)
            trained = named(pipe, its)
    for scope in ("world", "host", None):
        model, optimizer = replicated(scope)
        checkpoint.load(folder / "stages", model, optimizer)
        expect_same(named(model, optimizer), trained, scope)


def test_every_world_and_scope_resumes_with_the_same_bits(tmp_path: Path) -> None:
    run(resumes_anywhere, 4, hosts=[0, 0, 1, 1], env={"SAVE": str(tmp_path)})


def test_state_that_is_kept_once_for_a_parameter_is_resumed(tmp_path: Path) -> None:
    run(resumes_with_more_state, 3, env={"SAVE": str(tmp_path)})


def test_stages_resume_from_data_parallel_training_and_back(tmp_path: Path) -> None:
    run(changes_the_layout, 4, hosts=[0, 0, 1, 1], env={"SAVE": str(tmp_path)})


def small(optimizer: Any, make: Any = None) -> tuple[nn.Module, Optimizer]:
    torch.manual_seed(0)
    model = DistributedDataParallel((make or deep)())
    return model, ShardedOptimizer(optimizer(model.parameters()), model)


def refuses() -> None:
    """One error names both sides, and nothing has changed."""
    folder = Path(os.environ["SAVE"])
    wide = functools.partial(nn.Linear, 8, 50)
    saved: dict[str, dict[str, Any]] = {}
    for name in ("AdamW", "NAdam", "SGD"):
        model, optimizer = small(OPTIMIZERS[name])
        backward(model)
        optimizer.step()
        checkpoint.save(folder / name, model, optimizer)
        saved[name] = whole_state(optimizer, None)
    checkpoint.save(folder / "alone", model)
    other = small(adamw, wide)
    backward(other[0])
    other[1].step()
    other_state = whole_state(other[1], None)
    model, optimizer = small(adamw)
    backward(model)
    optimizer.step()
    before = everything(model, optimizer)

    def late() -> None:
        """A group fewer than when the checkpoint was saved."""
        torch.manual_seed(0)
        model = DistributedDataParallel(deep())
        parameters = list(model.parameters())
        partly = ShardedOptimizer(adamw(parameters[:2]), model)
        checkpoint.load(folder / "AdamW", model, partly)

    def changed(number: int, **values: Any) -> dict[str, Any]:
        state = copy.deepcopy(saved["AdamW"])
        state["state"][number].update(values)
        return state

    sgd = small(OPTIMIZERS["SGD"])
    adam = small(lambda parameters: torch.optim.AdamW(parameters, lr=0.1))
    nadam = small(OPTIMIZERS["NAdam"])
    cases: list[tuple[Any, str]] = [
        (lambda: checkpoint.load(folder / "AdamW", *other), "contains '0.weight'.* which the model does not"),
        (lambda: checkpoint.load(folder / "alone", model, optimizer), "contains no optimizer state"),
        (lambda: checkpoint.load(folder / "AdamW", *sgd), "has 'exp_avg'.* '0.weight', and SGD keeps 'mom"),
        (lambda: checkpoint.load(folder / "SGD", *adam), "has 'momentum_buffer' .* AdamW keeps 'exp_avg'"),
        (lambda: checkpoint.load(folder / "AdamW", *nadam), "NAdam keeps .*'mu_product'"),
        (lambda: checkpoint.load(folder / "NAdam", *adam), "has .*'mu_product'.* AdamW keeps"),
        (late, r"has optimizer state for '1.weight', '1.bias', which ShardedOptimizer does not"),
        (lambda: optimizer.load_state_dict(saved["SGD"]), "has 'momentum_buffer' .* AdamW keeps"),
        (lambda: optimizer.load_state_dict(saved["NAdam"]), "'mu_product'.* AdamW keeps"),
        (lambda: optimizer.load_state_dict(other_state), r"groups of \[2\] parameters, and .* of \[4\]"),
        (
            lambda: optimizer.load_state_dict(changed(2, exp_avg=torch.ones(5))),
            r"'exp_avg' has shape \(5,\), and its parameter '1.weight' has \(3, 50\)",
        ),
    ]
    for call, words in cases:
        with pytest.raises(ValueError, match=words):
            call()
    for call in (checkpoint.save, checkpoint.load):
        with pytest.raises(TypeError, match="or ShardedDataParallel, but got a Sequential"):
            call(folder / "nothing", model.module)
    expect_same(everything(model, optimizer), before, "refused")
    # The options come from the checkpoint, and so do the keys that depend on them.
    checkpoint.load(folder / "AdamW", model, optimizer)
    assert optimizer.param_groups[0]["amsgrad"]
    backward(model)
    optimizer.step()


def test_other_models_and_optimizers_are_refused(tmp_path: Path) -> None:
    run(refuses, env={"SAVE": str(tmp_path)})
