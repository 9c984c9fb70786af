"""Values and gradients between the stages of different ranks, at their places in the schedule."""

from __future__ import annotations

import torch

from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.lowering import Passes
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.transfers.transfers import room_for, strides_of


class TransferActions(ActionHandler):
    """Performs SEND_F and SEND_B, and begins RECV_F and RECV_B ahead of their places."""

    kinds = frozenset({"SEND_F", "SEND_B", "RECV_F", "RECV_B"})

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        """Returns the pass that adds transfers, also of values that pass stages by."""
        return {"send_recv": True, "skip_edges": plan.skip_edges()}

    def post(self, action: Action, run: StepRun) -> None:
        """Posts a receive."""
        if action.kind == "RECV_F":
            if not run.was_recorded(action.microbatch):
                run.microbatches[action.microbatch].receive_values(action.stage, action.other)
        elif action.kind == "RECV_B":
            _receive_backward(action, run)

    def perform(self, action: Action, run: StepRun) -> None:
        """Sends; what is received is waited for where it is used."""
        if action.kind == "SEND_F":
            if not run.was_recorded(action.microbatch):
                run.microbatches[action.microbatch].send_values(action.stage, action.other)
        elif action.kind == "SEND_B":
            _send_backward(action, run)


def _send_backward(action: Action, run: StepRun) -> None:
    microbatch = run.microbatches[action.microbatch]
    values = run.step.values
    to = run.step.rank_of[action.other]
    for value in run.plan.gradient_edges().get((action.stage, action.other), ()):
        gradient = microbatch.take_gradient(value, action.stage)
        tag = run.plan.tag(value, action.stage, action.microbatch, is_gradient=True)
        what = f"the gradient of {value.text()} to stage {action.other}, microbatch {action.microbatch}"
        values.send(gradient, to, tag, what)
        if run.was_recorded(action.microbatch):
            data = torch.tensor(gradient.stride(), dtype=torch.int64, device="cpu")
            values.send(data, to, tag, f"the strides of {what}")


def _receive_backward(action: Action, run: StepRun) -> None:
    microbatch = run.microbatches[action.microbatch]
    values = run.step.values
    source = run.step.rank_of[action.other]
    for value in run.plan.gradient_edges().get((action.other, action.stage), ()):
        tag = run.plan.tag(value, action.other, action.microbatch, is_gradient=True)
        what = (
            f"the gradient of {value.text()} from stage {action.other} on rank {source},"
            f" microbatch {action.microbatch}"
        )
        key = value.index, action.other
        room = room_for(value, strides_of(value))
        microbatch.gradients[key] = values.receive(room, source, tag, what)
        if run.was_recorded(action.microbatch):
            room = torch.empty(len(value.shape), dtype=torch.int64, device="cpu")
            microbatch.layouts[key] = values.receive(room, source, tag, what)
