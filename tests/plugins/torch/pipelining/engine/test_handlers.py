"""A feature adds actions to a schedule by a handler of its own: the executor is not changed for it."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from pipeline_models import Chain, adam, differences, made, only_x, rows, square_loss, train_alone
from torch_spawn import run

import smdp.torch
from smdp.pipeline import Schedule, generate
from smdp.torch.pipelining.engine.actions import Action, read_row
from smdp.torch.pipelining.engine.computations import Computations
from smdp.torch.pipelining.engine.handlers import ActionHandler, Handlers
from smdp.torch.pipelining.engine.lowering import Passes, lower
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.engine.transfer_actions import TransferActions
from smdp.torch.pipelining.interpreter.plan import Plan


class Gathering(ActionHandler):
    """As one that gathers the parameters of a stage before each forward, and notes the order of its calls."""

    kinds = frozenset({"GATHER"})

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []

    def lower(self, row: list[Action], table: Schedule, rank: int, plan: Plan) -> list[Action]:
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
        handlers.check([Action("GATHER", 0, 1, 0, "0GATHER1")])


class Sharding(ActionHandler):
    """As one that keeps at most two stages' parameters whole; the core's pass says when."""

    kinds = frozenset({"UNSHARD", "RESHARD"})

    def __init__(self) -> None:
        self.performed: list[str] = []

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        return {"unshard": 2}

    def perform(self, action: Action, run: StepRun) -> None:
        self.performed.append(action.text)


def check_passes() -> None:
    batch = rows(1)[0]
    alone = made(Chain)
    train_alone(alone, [batch], 4, square_loss, call=only_x)
    pipe = smdp.torch.pipeline(made(Chain), 2, 4, example_inputs=batch)
    sharding = Sharding()
    pipe._steps.handlers.add(sharding)
    optimizer = adam(pipe)
    pipe.train_step(batch, square_loss)
    optimizer.step()
    assert differences(pipe, alone) == {}
    stage = dist.get_rank()
    assert sharding.performed == [f"{stage}UNSHARD", f"{stage}RESHARD"]


def test_the_passes_over_a_table_follow_from_its_handlers() -> None:
    run(check_passes)


def test_only_the_passes_run_that_a_feature_asks_for() -> None:
    schedule = generate("1f1b", stages=2, microbatches=2)
    table, row = lower(schedule, [Computations()], Plan(), 0, has_backward=True)
    assert [action.text for action in row] == table.rows[0] == schedule.rows[0]
    table, _ = lower(schedule, [Computations(), TransferActions()], Plan(), 0, has_backward=True)
    assert {action.kind for action in read_row(table.rows[0])} == {"F", "B", "SEND_F", "RECV_B"}
    with pytest.raises(ValueError, match="features Sharding and Both both request the pass 'unshard'"):
        lower(schedule, [Sharding(), Both()], Plan(), 0, has_backward=True)


class Both(Sharding):
    """Another one of them."""
