"""A dead rank, or an error on one rank alone: all others raise in time, and say what they waited for."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import WIDTH, Chain, Layer, made, rows, square_loss
from torch import Tensor, nn
from torch_spawn import run

import smdp

WITHIN_S = 5.0


class Trap(nn.Module):
    """A layer that does something at its nth call on the rank that really runs it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()
        self.calls = 0
        self.at = -1
        self.action: Any = None

    def forward(self, x: Tensor) -> Tensor:
        from torch._subclasses import FakeTensor

        if not isinstance(x, FakeTensor):
            self.calls += 1
            if self.calls == self.at:
                with open(os.environ["SMDP_TEST_FOLDER"] + "/when", "w") as file:
                    file.write(str(time.time()))
                self.action()
        return self.layer(x)


class Trapped(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Trap() for _ in range(8))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail() -> None:
    raise ZeroDivisionError("only here")


def seconds_since() -> float:
    with open(os.environ["SMDP_TEST_FOLDER"] + "/when") as file:
        return time.time() - float(file.read())


def made_trap(action: Any, at: int, victim: int) -> Any:
    import smdp.torch

    stages = dist.get_world_size()
    # Pinned: as measured on a busy machine, a stage may be left with nothing but the head.
    pins = {f"layers.{8 // stages * stage}": stage for stage in range(stages)}
    pipe = smdp.torch.pipeline(
        made(Trapped), stages, 4, example_inputs=rows()[0], virtual_stages=1, pins=pins
    )
    if at > 4:
        pipe.train_step(rows()[0], square_loss)
    trap = pipe.module.get_submodule(f"layers.{8 // stages * victim}")
    trap.calls, trap.at, trap.action = 0, (at - 1) % 4 + 1, action
    return pipe


def killed() -> None:
    victim = int(os.environ["VICTIM"])
    pipe = made_trap(die, int(os.environ["AT"]), victim)
    with pytest.raises(smdp.SmdpError) as caught:
        pipe.train_step(rows()[0], square_loss)
    took = seconds_since()
    text = str(caught.value)
    assert took < WITHIN_S, f"{took} s: {text}"
    print("found", round(took, 2), text)
    assert text.startswith("[smdp] ") and f"rank {victim}" in text, text
    assert re.search("while (waiting for|sending)|The action was ", text), text
    with pytest.raises(RuntimeError, match="earlier step of this pipeline failed"):
        pipe.train_step(rows()[0], square_loss)


@pytest.mark.parametrize(
    ("ranks", "victim", "at"),
    [(2, 0, 7), (2, 1, 2), (4, 2, 7), pytest.param(4, 3, 1, marks=pytest.mark.slow)],
)
def test_a_killed_stage_is_named_by_the_others(ranks: int, victim: int, at: int) -> None:
    """at: The call in which it dies; the first 4 are those of the step that records the program."""
    env = {"VICTIM": str(victim), "AT": str(at)}
    outputs = run(killed, ranks, env=env, exits={victim: -signal.SIGKILL})
    assert sum("found" in text for text in outputs) == ranks - 1


def killed_beside_a_replica() -> None:
    """Who waits for gradients of a replica that lost a stage is told as soon as those who lost it."""
    import smdp.torch

    folder, rank = Path(os.environ["SMDP_TEST_FOLDER"]), dist.get_rank()
    pins = {"layers.0": 0, "layers.4": 1}
    pipe = smdp.torch.pipeline(made(Trapped), 2, 4, example_inputs=rows()[0], virtual_stages=1, pins=pins)
    pipe.train_step(rows()[0], square_loss)
    if rank == 3:
        trap = pipe.module.get_submodule("layers.4")
        trap.calls, trap.at, trap.action = 0, 3, die
    with pytest.raises(smdp.SmdpError) as caught:
        pipe.train_step(rows()[0], square_loss)
    text = str(caught.value)
    assert seconds_since() < WITHIN_S and "rank 3" in text, text
    (folder / f"told{rank}").touch()
    while len(list(folder.glob("told*"))) < 3:  # none ends before all know
        assert seconds_since() < 2 * WITHIN_S
        time.sleep(0.1)


def test_a_stage_of_one_replica_is_killed() -> None:
    run(killed_beside_a_replica, 4, exits={3: -signal.SIGKILL})


def killed_in_the_loss() -> None:
    import smdp.torch

    pipe = smdp.torch.pipeline(made(Chain), 2, 4, "1f1b", example_inputs=rows()[0])
    calls = 0

    def loss_fn(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        nonlocal calls
        calls += 1
        loss = square_loss(output, part)
        if dist.get_rank() == 1 and calls == 6:
            with open(os.environ["SMDP_TEST_FOLDER"] + "/when", "w") as file:
                file.write(str(time.time()))
            die()
        return loss if loss.item() > -1 else loss * 2

    pipe.train_step(rows()[0], loss_fn)
    with pytest.raises(smdp.SmdpError) as caught:
        pipe.train_step(rows()[0], loss_fn)
    text = str(caught.value)
    assert seconds_since() < WITHIN_S
    assert "rank 1" in text and re.search("while (waiting for|sending)|The action was ", text), text


def test_a_rank_killed_in_the_loss_function() -> None:
    run(killed_in_the_loss, 2, exits={1: -signal.SIGKILL})


def raised_on_one_rank() -> None:
    for at in (1, 3, 6):
        for victim in range(dist.get_world_size()):
            if dist.get_rank() == 0 and os.path.exists(os.environ["SMDP_TEST_FOLDER"] + "/when"):
                os.remove(os.environ["SMDP_TEST_FOLDER"] + "/when")
            dist.barrier()
            pipe = made_trap(fail, at, victim)
            if dist.get_rank() == victim:
                with pytest.raises(ZeroDivisionError, match="only here"):
                    pipe.train_step(rows()[0], square_loss)
            else:
                with pytest.raises(
                    smdp.SmdpError, match=rf"rank {victim}.*ZeroDivisionError: only here"
                ) as caught:
                    pipe.train_step(rows()[0], square_loss)
                assert str(caught.value).startswith("[smdp] ")
                assert seconds_since() < WITHIN_S
            dist.barrier()
    # Other pipelines of the same processes go on.
    pipe = smdp.torch.pipeline(made(Chain), dist.get_world_size(), 4, example_inputs=rows()[0])
    assert torch.isfinite(pipe.train_step(rows()[0], square_loss))


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_an_error_of_one_rank_reaches_the_others_with_its_text(ranks: int) -> None:
    run(raised_on_one_rank, ranks)


def wrong_width() -> None:
    import smdp.torch

    pipe = smdp.torch.pipeline(made(Chain), 2, 4, "1f1b", example_inputs=rows()[0])
    batch = {"x": torch.randn(8, WIDTH - 1), "y": torch.randn(8, 1)}
    dist.barrier()
    begin = time.monotonic()
    with pytest.raises((RuntimeError, smdp.SmdpError)) as caught:
        pipe.train_step(batch, square_loss)
    assert time.monotonic() - begin < WITHIN_S
    text = " ".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert f"{WIDTH}x{WIDTH}" in text, text
    if dist.get_rank() == 1:
        assert isinstance(caught.value, smdp.SmdpError) and "rank 0" in text, text
    if sys.version_info >= (3, 11):
        assert "'layers.0' on stage 0" in text, text


def test_an_error_in_the_first_module_while_recording_reaches_the_others_with_its_name() -> None:
    run(wrong_width)
