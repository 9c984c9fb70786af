"""Handlers for the forward and backward of this rank's stages."""

from __future__ import annotations

from smdp.torch.pipelining.engine.actions import COMPUTATIONS, Action
from smdp.torch.pipelining.engine.backward import backward, backward_weight
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.step_run import StepRun


class Computations(ActionHandler):
    """Performs the actions F, B, I and W."""

    kinds = frozenset(COMPUTATIONS)

    def perform(self, action: Action, run: StepRun) -> None:
        """Computes a stage for a microbatch."""
        if action.kind == "F":
            _forward(action, run)
        elif action.kind == "W":
            backward_weight(run.microbatches[action.microbatch], action.stage)
        else:
            _backward_input(action, run)
            if action.kind == "B":
                backward_weight(run.microbatches[action.microbatch], action.stage)


def _forward(action: Action, run: StepRun) -> None:
    if not run.was_recorded(action.microbatch):
        microbatch = run.under_way[action.microbatch] = run.microbatches[action.microbatch]
        run.wait_until(lambda: microbatch.forward(action.stage))


def _backward_input(action: Action, run: StepRun) -> None:
    microbatch = run.microbatches[action.microbatch]
    # The rank that sends the gradient may itself be waiting for a value from this rank.
    run.wait_until(lambda: run.step.reading <= 0 or microbatch.gradients.are_there(action.stage))
    backward(run.plan, microbatch, action.stage, run.scale)
