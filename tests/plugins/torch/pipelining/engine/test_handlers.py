"""A feature adds actions to a schedule by a handler of its own: the executor is not changed for it."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from pipeline_models import Chain, adam, differences, made, only_x, rows, square_loss, train_alone
from torch_spawn import run

import smdp.torch
from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.computations import Computations
from smdp.torch.pipelining.engine.handlers import ActionHandler, Handlers
from smdp.torch.pipelining.engine.step_run import StepRun


class Gathering(ActionHandler):
    """As one that gathers the parameters of a stage before each forward, and notes the order of its calls."""

    kinds = frozenset({"GATHER"})

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def lower(self, row: list[Action]) -> list[Action]:
        lowered = []
        for action in row:
            if action.kind == "F":
                text = f"{action.stage}GATHER{action.microbatch}"
                lowered.append(Action("GATHER", action.stage, action.microbatch, action.other, text))
            lowered.append(action)
        return lowered

    def post(self, action: Action, run: StepRun) -> None:
        self.calls.append(("begun", action.stage, action.microbatch))

    def perform(self, action: Action, run: StepRun) -> None:
        assert run.plan.operations
        self.calls.append(("performed", action.stage, action.microbatch))


def check_handler() -> None:
    steps = rows(3, 8)
    alone = made(Chain)
    train_alone(alone, steps, 4, square_loss, call=only_x)
    pipe = smdp.torch.pipeline(made(Chain), 2, 4, example_inputs=steps[0])
    gathering = Gathering()
    pipe._steps.handlers.add(gathering)
    optimizer = adam(pipe)
    for batch in steps:
        optimizer.zero_grad()
        pipe.train_step(batch, square_loss)
        optimizer.step()
    assert differences(pipe, alone) == {}
    stage = dist.get_rank()
    performed = [call for call in gathering.calls if call[0] == "performed"]
    assert performed == [("performed", stage, microbatch) for _ in steps for microbatch in range(4)]
    if stage == 0:  # whose second forward is at most two computations behind the first
        assert gathering.calls[:3] == [("begun", 0, 0), ("begun", 0, 1), ("performed", 0, 0)]


def test_a_handler_of_ones_own_is_called_by_the_schedule() -> None:
    run(check_handler)


def test_an_action_has_one_handler() -> None:
    handlers = Handlers([Computations()])
    with pytest.raises(ValueError, match="Computations and Computations both perform B"):
        handlers.add(Computations())
    with pytest.raises(ValueError, match="no handler performs action 0GATHER1"):
        handlers.lower([Action("GATHER", 0, 1, 0, "0GATHER1")])
