"""16-bit training over ranks: replicas, shards, slices and stages."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from divided_models import PLAN, VOCABULARY, Model
from pipeline_models import Language, batches, differences, language_loss, made
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp.torch import (
    DistributedDataParallel,
    DynamicLossScale,
    MixedPrecision,
    ShardedOptimizer,
    StepInForward,
    lower_precision,
)
from smdp.torch.checkpoints import checkpoint
from smdp.torch.sharding.sharded_gradient import ShardedGradient

Trained = tuple[nn.Module, MixedPrecision]
MICROBATCHES = 4


def small() -> nn.Module:
    return Language(2)


def adamw(module: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2, weight_decay=0.1, **options)


def alone(dtype: torch.dtype = torch.bfloat16, **options: Any) -> Trained:
    model = made(small)
    return model, MixedPrecision(adamw(model), model, dtype, **options)


def parts(batch: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    return [{name: item.chunk(count)[index] for name, item in batch.items()} for index in range(count)]


def train(model: nn.Module, optimizer: MixedPrecision, batch: dict[str, Tensor]) -> float:
    """One step with microbatches; of several ranks, each has its part of the batch."""
    optimizer.zero_grad()
    microbatches = parts(batch, MICROBATCHES)
    for index, part in enumerate(microbatches):
        is_last = index == len(microbatches) - 1
        if isinstance(model, nn.parallel.DistributedDataParallel):
            model.require_backward_grad_sync = is_last
        optimizer.backward(language_loss(model(**part), part) / MICROBATCHES)
    norm = optimizer.clip_master_grads(0.5)
    optimizer.step()
    return norm


def same(one: nn.Module, other: nn.Module) -> bool:
    expected = dict(one.named_parameters())
    return all(torch.equal(each, expected[name]) for name, each in other.named_parameters())


def replicas_and_shards() -> None:
    """Shards have the bits of whole masters under smdp's and torch's DDP; a norm is that of one process."""
    log = logging.getLogger("smdp.torch.precision.wide_sums")
    warned: list[str] = []
    log.addFilter(lambda record: warned.append(record.getMessage()) is not None)
    for dtype in (torch.bfloat16, torch.float16):
        options: dict[str, Any] = {"accumulate_in_fp32": True}
        if dtype is torch.float16:
            options["loss_scale"] = DynamicLossScale(2.0**20, scale_window=2)
        found: list[Trained] = []
        for kind in ("smdp", "torch", "sharded"):
            model = lower_precision(made(small), dtype)
            wrap = nn.parallel.DistributedDataParallel if kind == "torch" else DistributedDataParallel
            wrapped = wrap(model)
            inner = adamw(wrapped)
            if kind == "sharded":
                inner = ShardedOptimizer(inner, wrapped, master_dtype=torch.float32)
            found.append((wrapped, MixedPrecision(inner, wrapped, dtype, **options)))
        skipped = 0
        for batch in batches(6, 8, seed=dist.get_rank()):
            norms = {train(*each, batch) for each in found}
            assert len(norms) == 1, norms
            assert all(same(found[0][0], model) for model, _ in found)
            skipped += all(optimizer.overflow for _, optimizer in found)
        assert 0 < skipped < 6 if dtype is torch.float16 else skipped == 0
        assert len({optimizer.loss_scale for _, optimizer in found}) == 1
        assert warned == []
        for _ in range(3):  # each averages
            found[2][1].backward(language_loss(found[2][0](**batch), batch))
        assert [each[:45] for each in warned] == ["[smdp] accumulate_in_fp32: a backward adds to"]
        warned.clear()


def own_values(parameter: nn.Parameter) -> Tensor:
    """Returns this rank's values of a gradient, one-dimensional."""
    gradient = parameter.grad
    assert gradient is not None
    if isinstance(gradient, ShardedGradient):
        return next(iter(gradient.pieces), torch.empty(0))
    return gradient.view(-1)


def overflow_on(
    rank: int, model: nn.Module, optimizer: MixedPrecision, backward: Callable[[Any, Any], Any]
) -> None:
    """An infinite element on one rank skips the step and halves the scale everywhere."""
    for what in ("step", "clip"):
        optimizer.zero_grad()
        backward(model, optimizer)
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scale = optimizer.loss_scale
        if dist.get_rank() == rank:
            next(filter(len, map(own_values, model.parameters())))[0] = (
                math.nan if what == "clip" else math.inf
            )
        if what == "clip":
            assert optimizer.clip_master_grads(1.0) == -1
        optimizer.step()
        assert optimizer.overflow
        assert optimizer.loss_scale == scale / 2
        assert all(map(torch.equal, before, model.parameters()))
    optimizer.zero_grad()
    backward(model, optimizer)
    optimizer.step()
    assert not optimizer.overflow
    assert optimizer.loss_scale == scale / 2
    assert not all(map(torch.equal, before, model.parameters()))


def overflows_of_replicas() -> None:
    (batch,) = batches(1, 4)

    def backward(model: nn.Module, optimizer: MixedPrecision) -> None:
        optimizer.backward(language_loss(model(**batch), batch))

    for kind in ("whole", "sharded", "sharded, and the model without its wrapper"):
        model = DistributedDataParallel(lower_precision(made(small), torch.float16))
        inner: torch.optim.Optimizer = adamw(model)
        if kind != "whole":
            inner = ShardedOptimizer(inner, model, master_dtype=torch.float32)
        given = model.module if "without" in kind else model
        optimizer = MixedPrecision(inner, given, torch.float16, loss_scale=DynamicLossScale(256.0))
        overflow_on(1, model, optimizer, backward)


def stages() -> None:
    """A pipeline trains to the bits of one process, also with shards, and all its ranks see an overflow."""
    steps = batches(3, 8)

    def train_step(pipe: smdp.torch.PipelinedModule, optimizer: MixedPrecision) -> None:
        pipe.train_step(steps[0], language_loss, scaler=optimizer)

    are_sharded = dist.get_world_size() > 2
    for dtype in (torch.float16,) if are_sharded else (torch.bfloat16, torch.float16):
        scale = DynamicLossScale(2.0**12, scale_window=2) if dtype is torch.float16 else None
        expected = [alone(dtype, loss_scale=scale, accumulate_in_fp32=wide) for wide in (False, True)]
        norms = [[train(*each, batch) for batch in steps] for each in expected]
        assert not same(expected[0][0], expected[1][0])
        for schedule, wide in (("1f1b", False), ("zb_1p", True))[are_sharded:]:
            model = lower_precision(made(small), dtype)
            pipe = smdp.torch.pipeline(model, 2, MICROBATCHES, schedule, example_inputs=steps[0])
            inner: torch.optim.Optimizer = adamw(pipe)
            if are_sharded:
                inner = ShardedOptimizer(inner, pipe, master_dtype=torch.float32)
            optimizer = MixedPrecision(inner, pipe, dtype, loss_scale=scale, accumulate_in_fp32=wide)
            for batch, norm in zip(steps, norms[wide], strict=True):
                optimizer.zero_grad()
                pipe.train_step(batch, language_loss, scaler=optimizer)
                assert optimizer.clip_master_grads(0.5) == pytest.approx(norm, rel=1e-6)
                optimizer.step()
            apart = differences(pipe, expected[wide][0])
            assert apart == {}, (dtype, schedule, wide, apart)
        if dtype is torch.float16:
            for rank in range(dist.get_world_size()):
                overflow_on(rank, pipe, optimizer, train_step)
            optimizer.zero_grad()
            sums = []
            for _ in range(2):  # every rank looks again at gradients that have grown
                train_step(pipe, optimizer)
                sums.append(optimizer.clip_master_grads(0.5))
            assert sums[1] == pytest.approx(2 * sums[0], rel=1e-2)
            optimizer.step()
            optimizer.zero_grad()
            pipe.train_step(batch, language_loss)
            with pytest.raises(RuntimeError, match=r"was not multiplied by it .* scaler=optimizer"):
                optimizer.step()
    with pytest.raises(RuntimeError, match=r"Call pipe\.train_step\(batch, loss_fn, scaler=optimizer\)"):
        optimizer.backward(torch.ones(()))


SCALE = 2.0**12


def divided(pp: int, dtype: torch.dtype = torch.bfloat16, scale: Any = SCALE) -> Trained:
    """Returns a model of two slices, in stages or with replicas whose optimizer is sharded."""
    model = lower_precision(made(lambda: Model(blocks=2)), dtype)
    inner: torch.optim.Optimizer
    if pp > 1:
        whole: nn.Module = smdp.torch.pipeline(model, pp, 2, tensor=2)
        inner = adamw(whole)
    else:
        whole = DistributedDataParallel(smdp.torch.tensor_parallel(model, 2, PLAN))
        inner = ShardedOptimizer(adamw(whole), whole, master_dtype=torch.float32)
    return whole, MixedPrecision(inner, whole, dtype, loss_scale=scale)


def texts(step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(step)
    return {"tokens": torch.randint(VOCABULARY, (8, 6), generator=generator)}


def loss_of_text(output: Tensor, microbatch: dict[str, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(output[:, :-1].flatten(0, 1), microbatch["tokens"][:, 1:].flatten())


def step_of(model: nn.Module, optimizer: MixedPrecision, step: int) -> float:
    optimizer.zero_grad()
    batch = texts(step)
    if isinstance(model, smdp.torch.PipelinedModule):
        model.train_step(batch, loss_of_text, scaler=optimizer)
    else:
        for part in parts(batch, 2):
            optimizer.backward(loss_of_text(model(**part), part) / 2)
    norm = optimizer.clip_master_grads(0.5)
    optimizer.step()
    return norm


def slices() -> None:
    """Slices with stages, and slices with shards, train like one process; either resumes the other."""
    model = made(lambda: Model(blocks=2))
    optimizer = MixedPrecision(adamw(model), model)
    expected = [step_of(model, optimizer, step) for step in range(5)]
    for pp in (2, 1):
        found = divided(pp)
        norms = [step_of(*found, step) for step in range(3)]
        name = f"{os.environ['FOLDER']}-{pp}"
        checkpoint.save(name, *found)
        norms += [step_of(*found, step) for step in range(3, 5)]
        assert norms == pytest.approx(expected, rel=0.02), pp
        for other in (2, 1) if pp == 2 else (1,):
            again = divided(other)
            step_of(*again, 9)
            again[1].loss_scale = 2.0
            checkpoint.load(name, *again)
            assert again[1].loss_scale == SCALE
            resumed = [step_of(*again, step) for step in range(3, 5)]
            assert resumed == pytest.approx(norms[3:], rel=0 if other == pp else 0.02), (pp, other)
            assert other != pp or same(found[0], again[0])
    for rank in (0, 3):
        overflow_on(
            rank,
            *divided(1, torch.float16, DynamicLossScale(256.0)),
            lambda model, optimizer: optimizer.backward(loss_of_text(model(**texts(0)), texts(0))),
        )


def wrong_order() -> None:
    """Errors name the order of the calls that works."""
    model = DistributedDataParallel(nn.Linear(3, 3))
    with pytest.raises(
        ValueError, match=r"Call smdp\.torch\.lower_precision\(model, torch\.bfloat16\) before"
    ):
        MixedPrecision(adamw(model), model)
    with pytest.raises(ValueError, match=r"lower_precision got a model in DistributedDataParallel"):
        lower_precision(model)
    pipe = smdp.torch.pipeline(made(small), 2, 2)
    with pytest.raises(ValueError, match=r"before the model is wrapped or split"):
        MixedPrecision(adamw(pipe), pipe)
    model = DistributedDataParallel(lower_precision(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match=r"wrappers go around the ShardedOptimizer"):
        ShardedOptimizer(MixedPrecision(adamw(model), model), model)
    with pytest.raises(ValueError, match=r"StepInForward got a MixedPrecision, which needs all gradients"):
        StepInForward(model, MixedPrecision(adamw(model), model))
    with pytest.raises(ValueError, match=r"Create it with master_dtype=torch\.float32"):
        MixedPrecision(ShardedOptimizer(adamw(model), model), model)


def two_ranks() -> None:
    wrong_order()
    replicas_and_shards()
    overflows_of_replicas()
    stages()


def test_two_ranks() -> None:
    run(two_ranks)


def four_ranks() -> None:
    stages()
    slices()


def test_four_ranks(tmp_path: Path) -> None:
    run(four_ranks, 4, env={"FOLDER": str(tmp_path / "saved")})
