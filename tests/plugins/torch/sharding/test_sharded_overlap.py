"""Updates and parameters that travel beside computation: the same bits, and errors that reach all ranks."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from sharded_models import OPTIMIZERS, Maker, collected, differences, values
from torch import Tensor, nn
from torch.optim import SGD, Optimizer
from torch_spawn import run

import smdp
from smdp.torch import DistributedDataParallel, ShardedOptimizer


class Blocks(nn.Module):
    """Blocks with fusion buffers of their own, between a stem and a tied head."""

    def __init__(self, width: int = 520) -> None:
        super().__init__()
        self.stem = nn.Linear(8, width)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(3))
        self.is_sideways = False

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        if self.is_sideways:
            x = x @ self.get_parameter("blocks.2.0.weight")
        for block in self.blocks:
            x = x + block(x)
        return x @ self.stem.weight


class Counting(SGD):
    """Counts its steps in each group, and uses the count."""

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            group["lr"] = 0.1 / group["steps"]
        super().step(closure)


def backward(model: nn.Module, step: int) -> None:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    model(torch.randn(4, 8, generator=generator)).square().mean().backward()


def made(maker: Maker, **options: Any) -> tuple[DistributedDataParallel, Any]:
    """Returns a model and its optimizer with two groups, sharded if there are options."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Blocks(), bucket_cap_mb=0.5)
    optimizer = maker([one for one in model.parameters() if one.dim() > 1])
    optimizer.add_param_group({"params": [one for one in model.parameters() if one.dim() == 1], "lr": 0.02})
    return model, ShardedOptimizer(optimizer, model, **options) if options else optimizer


def train(model: nn.Module, optimizer: Optimizer, steps: Iterable[int], limit: float = 0.0) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(model, step)
        if limit:
            nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()


def trains_to_the_same_bits() -> None:
    makers: list[Maker] = [OPTIMIZERS["AdamW"], OPTIMIZERS["NAdam"], lambda p: Counting(p, lr=0.1)]
    for number, maker in enumerate(makers):
        expected, plain = made(maker)
        train(expected, plain, range(4))
        for overlaps in (False, True):
            model, optimizer = made(maker, overlap_forward=overlaps)
            assert optimizer.layout.size > 3
            train(model, optimizer, range(4))
            assert [group.get("steps") for group in optimizer.param_groups] == [
                4 if number == 2 else None
            ] * 2
            optimizer.settle()
            assert differences(values(model), values(expected)) == 0.0, (number, overlaps)


def updates_buffers_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer = made(OPTIMIZERS["SGD"], scope="world")
    train(model, optimizer, range(2))
    events: list[str] = []
    means, update = optimizer._means, optimizer._update
    end, part, whole = means.end, update._step_part, update._step_whole
    monkeypatch.setattr(means, "end", lambda: (means.is_over or events.append("end"), end()))
    monkeypatch.setattr(update, "_step_part", lambda members: (events.append("part"), part(members)))
    monkeypatch.setattr(update, "_step_whole", lambda: (events.append("whole"), whole()))
    train(model, optimizer, [2])
    assert len(events) > 3 and {*events[:-1]} == {"part"} and events[-1] == "end"
    events.clear()
    train(model, optimizer, [3], limit=1e9)
    assert len(events) > 3 and events[0] == "end" and {*events[1:]} == {"part"}
    events.clear()
    handle = optimizer.inner.register_step_post_hook(lambda *_: None)
    train(model, optimizer, [4])
    handle.remove()
    assert events == ["end", "whole"]


def waits_in_the_forward() -> None:
    expected, plain = made(OPTIMIZERS["SGD"])
    train(expected, plain, range(3))
    model, optimizer = made(OPTIMIZERS["SGD"], overlap_forward=True)
    train(model, optimizer, range(1))
    model.module.is_sideways = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"'blocks\.2\.0\.weight' is used before its unit's forward"):
            model(torch.ones(4, 8))
    model.module.is_sideways = False
    train(model, optimizer, range(1, 3))
    waiting = optimizer._returning.pending
    assert len(waiting) == len(list(model.parameters()))
    state = model.state_dict()
    assert not waiting
    assert differences(state.values(), expected.state_dict().values()) == 0.0
    with torch.no_grad():
        assert torch.equal(model(torch.ones(4, 8)), expected(torch.ones(4, 8)))
    found, whole = collected(optimizer), plain.state_dict()
    assert torch.equal(found["state"][0]["momentum_buffer"], whole["state"][0]["momentum_buffer"])
    backward(model, 3)  # a step under way when the process ends


def overlaps() -> None:
    trains_to_the_same_bits()
    with pytest.MonkeyPatch.context() as patch:
        updates_buffers_as_they_come(patch)
    waits_in_the_forward()


@pytest.mark.parametrize("hosts", [None, [0, 1]])
def test_updates_and_parameters_travel_beside_computation(hosts: list[int] | None) -> None:
    run(overlaps, hosts=hosts)


def fails_alone() -> None:
    """Rank 1 raises in step(), and lives on; the others get its reason at once."""

    def raises(*_: Any) -> None:
        raise ArithmeticError("no more numbers")

    def unaveraged(model: DistributedDataParallel, optimizer: Any) -> None:
        optimizer.zero_grad()
        with model.no_sync():
            backward(model, 3)

    def broken(model: DistributedDataParallel, optimizer: Any) -> None:
        optimizer.inner.register_step_pre_hook(raises)

    for breaks, kind, words in (
        (unaveraged, RuntimeError, "gradient of parameter 'stem.weight' is not averaged"),
        (broken, ArithmeticError, "no more numbers"),
    ):
        model, optimizer = made(OPTIMIZERS["AdamW"], overlap_forward=breaks is broken)
        train(model, optimizer, range(2))
        backward(model, 2)
        begin = time.monotonic()
        if dist.get_rank() == 1:
            breaks(model, optimizer)
            with pytest.raises(kind, match=words):
                optimizer.step()
        else:
            with pytest.raises(RuntimeError, match=f"rank 1 .* failed: .*{words}"):
                _ = optimizer.step(), model(torch.ones(4, 8))
            assert time.monotonic() - begin < 5
        dist.barrier()


def test_an_error_of_one_rank_ends_the_step_of_all() -> None:
    run(fails_alone)


def dies() -> None:
    model, optimizer = made(OPTIMIZERS["AdamW"], overlap_forward=True)
    train(model, optimizer, range(3))
    state = collected(optimizer)
    if dist.get_rank() == 0:
        torch.save({"model": model.module.state_dict(), "optimizer": state}, os.environ["CHECKPOINT"])
    else:
        optimizer.settle()
    backward(model, 3)
    if dist.get_rank() == 1:
        gather = optimizer.layout.gather()
        optimizer.layout.gather = lambda: Dying(gather)
    begin = time.monotonic()
    with pytest.raises(smdp.PeerLostError, match="rank 1"):
        _ = optimizer.step(), model(torch.ones(4, 8))
    assert time.monotonic() - begin < 5
    with pytest.raises(RuntimeError, match="rank 1"):
        _ = optimizer.step(), model.state_dict()
    os._exit(0)  # the group is closed


class Dying:
    """Ends the process when half of the fusion buffers are sent."""

    def __init__(self, gather: Any) -> None:
        self._gather = gather

    def ready(self, number: int) -> None:
        if number == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        self._gather.ready(number)


def resumes() -> None:
    saved = torch.load(os.environ["CHECKPOINT"])
    model, optimizer = made(OPTIMIZERS["AdamW"], overlap_forward=True)
    model.module.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    expected, plain = made(OPTIMIZERS["AdamW"])
    train(expected, plain, range(5))
    train(model, optimizer, range(3, 5))
    optimizer.settle()
    assert differences(values(model), values(expected)) == 0.0


def test_the_last_checkpoint_resumes_when_a_rank_dies_while_parameters_travel(tmp_path: Path) -> None:
    env = {"CHECKPOINT": str(tmp_path / "checkpoint.pt")}
    run(dies, 3, env=env, exits={1: -signal.SIGKILL})
    run(resumes, 3, env=env)
