"""16-bit parameters whose owners keep them in 32 bits."""

from __future__ import annotations

import copy
import io
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import collected
from torch import Tensor, nn
from torch.optim import Optimizer
from torch_spawn import run

from smdp.torch import DistributedDataParallel, ShardedOptimizer
from smdp.torch.checkpoints import checkpoint
from smdp.torch.optimizers.optimizer_link import OptimizerLink

Made = tuple[DistributedDataParallel, ShardedOptimizer]
STEPS = range(20)
SAVED = 8


class Model(nn.Module):
    """Matrices with 16 bits, one of them large, and a norm with 32."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(900, 64, dtype=dtype)
        self.norm = nn.LayerNorm(64)
        self.hidden = nn.Linear(64, 64, dtype=dtype)

    def forward(self, tokens: Tensor) -> Tensor:
        rows = self.norm(self.embedding(tokens).float()).to(self.hidden.weight.dtype)
        return torch.tanh(self.hidden(rows)).float()


class WholeMasters:
    """What every rank does without shards: an optimizer of `float32` copies of all parameters."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.masters = [one.detach().float().requires_grad_() for one in self.parameters]
        self.inner = adamw(self.masters)

    def step(self, scale: float = 1.0) -> None:
        for master, one in zip(self.masters, self.parameters, strict=True):
            assert one.grad is not None
            master.grad = one.grad.float() * (1 / scale)
        self.inner.step()
        with torch.no_grad():
            for master, one in zip(self.masters, self.parameters, strict=True):
                one.copy_(master)


def adamw(parameters: Any) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)


def made(dtype: torch.dtype, scope: str) -> Made:
    model = DistributedDataParallel(Model(dtype))
    return model, ShardedOptimizer(adamw(model.parameters()), model, scope, master_dtype=torch.float32)


def backward(model: DistributedDataParallel, step: int, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    model.zero_grad()
    (model(torch.randint(900, (5, 7), generator=generator)).square().mean() * scale).backward()


def values(model: DistributedDataParallel) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(*both) for both in zip(one, other, strict=True))


def trains_to_the_bits_of_whole_masters(dtype: torch.dtype, scope: str, steps: range = STEPS) -> None:
    expected = DistributedDataParallel(Model(dtype))
    reference = WholeMasters(expected)
    model, optimizer = made(dtype, scope)
    for step in steps:
        for each in (expected, model):
            backward(each, step)
            if step % 2:
                nn.utils.clip_grad_norm_(each.parameters(), 0.01)
        reference.step()
        optimizer.step()
        assert are_equal(values(model), values(expected)), (dtype, scope, step)


def divides_by_the_loss_scale() -> None:
    """GradScaler does not unscale fp16 gradients. An infinite element skips the step on all ranks."""
    expected = DistributedDataParallel(Model(torch.float16))
    reference = WholeMasters(expected)
    model, optimizer = made(torch.float16, "world")
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    for step in range(6):
        scale = scaler.get_scale()
        backward(expected, step, scale)
        backward(model, step, scale)
        scaler.scale(torch.ones(()))  # as loss.backward() would have begun
        before = values(model)
        if step == 3 and dist.get_rank() == 1:
            next(one.grad.pieces for one in model.parameters() if one.grad.pieces)[0][0] = math.inf
        scaler.step(OptimizerLink(optimizer))  # which passes on what the scaler sets
        scaler.update()
        if step == 3:
            assert are_equal(values(model), before)
        else:
            reference.step(scale)
            assert are_equal(values(model), values(expected)), step
    assert scaler.get_scale() == 256.0


def resumes_with_the_same_bits(scope: str, folder: str) -> None:
    model, optimizer = made(torch.bfloat16, scope)
    assert "master" not in str(collected(optimizer))  # the parameters are the masters, and there is no state
    for step in range(SAVED):
        backward(model, step)
        optimizer.step()
    file = io.BytesIO()
    torch.save([model.state_dict(), collected(optimizer)], file)
    checkpoint.save(folder, model, optimizer)
    resumed: list[Made] = []
    for order in ("weights first", "state first", "by names"):
        file.seek(0)
        weights, state = torch.load(file, weights_only=True)
        again, its = made(torch.bfloat16, scope)
        backward(again, 99)
        its.step()
        if order == "by names":
            checkpoint.load(folder, again, its)
        else:
            for what in ("weights", "state") if order == "weights first" else ("state", "weights"):
                _ = again.load_state_dict(weights) if what == "weights" else its.load_state_dict(state)
        resumed.append((again, its))
    # Without shards, and with an optimizer that keeps no masters.
    whole = DistributedDataParallel(Model(torch.bfloat16))
    whole.load_state_dict(weights)
    plain = adamw(whole.parameters())
    plain.load_state_dict(copy.deepcopy(state))  # torch does not copy what has the right dtype
    backward(whole, SAVED)
    plain.step()
    # With masters of all parameters.
    expected = DistributedDataParallel(Model(torch.bfloat16))
    expected.load_state_dict(weights)
    reference = WholeMasters(expected)
    with torch.no_grad():
        for number, master in enumerate(reference.masters):
            entry = state["state"][number]
            assert ("master" in entry) == (reference.parameters[number].dtype is torch.bfloat16)
            master.copy_(entry.pop("master", reference.parameters[number]))
    reference.inner.load_state_dict(state)
    for step in range(SAVED, SAVED + 4):
        for each, its in ((model, optimizer), (expected, reference), *resumed):
            backward(each, step)
            its.step()
        for number, (each, _) in enumerate([(expected, reference), *resumed]):
            assert are_equal(values(each), values(model)), (step, number)


def follows_what_is_written_to_parameters() -> None:
    model, optimizer = made(torch.bfloat16, "world")
    expected, other = made(torch.bfloat16, "world")
    for step in range(3):
        for each, its in ((model, optimizer), (expected, other)):
            backward(each, step)
            its.step()
    kept = [one.detach().clone() for one in model.parameters()]
    with torch.no_grad():
        for one, own in zip(model.parameters(), kept, strict=True):
            one.data.mul_(3)  # which changes no version counter
            one.copy_(own)  # brought back, as after an evaluation with averaged weights
    weight = model.module.hidden.weight
    with torch.no_grad():
        for each in (model, expected):
            each.module.hidden.weight.data[:, ::2] = 0.25
    for index, piece in enumerate(optimizer.inner.state):
        assert piece.dtype is torch.float32, index
    for each, its in ((model, optimizer), (expected, other)):
        backward(each, 3)
        its.step()
    assert are_equal(values(model), values(expected))
    # One step of AdamW changes an element by its rate and its decay.
    assert float((weight.detach()[:, ::2] - 0.25).abs().max()) < 2e-3


def keeps_its_part_of_the_bytes() -> None:
    model, optimizer = made(torch.bfloat16, "world")
    backward(model, 0)
    optimizer.step()
    own = sum(
        piece.nbytes + sum(value.nbytes for value in state.values() if value.dim())
        for piece, state in optimizer.inner.state.items()
        if piece.dtype is torch.float32 and state
    )
    whole = sum(12 * one.numel() for one in model.parameters())  # a master and two moments
    assert own <= 1.02 * whole / dist.get_world_size(), (own, whole)


def on_one_host() -> None:
    model = DistributedDataParallel(Model(torch.bfloat16))
    with pytest.raises(ValueError, match=r"master_dtype is torch\.float64; allowed: torch\.float32"):
        ShardedOptimizer(adamw(model.parameters()), model, master_dtype=torch.float64)
    for dtype in (torch.bfloat16, torch.float16):
        trains_to_the_bits_of_whole_masters(dtype, "world")
    divides_by_the_loss_scale()
    follows_what_is_written_to_parameters()
    keeps_its_part_of_the_bytes()
    resumes_with_the_same_bits("world", os.environ["FOLDER"])


def test_one_host(tmp_path: Path) -> None:
    run(on_one_host, env={"FOLDER": str(tmp_path / "saved")})


def on_two_hosts() -> None:
    for scope in ("host", "world"):
        trains_to_the_bits_of_whole_masters(torch.bfloat16, scope, range(8))
        resumes_with_the_same_bits(scope, f"{os.environ['FOLDER']}-{scope}")


def test_two_hosts(tmp_path: Path) -> None:
    run(on_two_hosts, 4, hosts=[0, 0, 1, 1], env={"FOLDER": str(tmp_path / "saved")})
