"""Handlers that move values and gradients between ranks, at their places in the schedule."""

from __future__ import annotations

from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.lowering import Passes
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.interpreter.plan import Plan


class TransferActions(ActionHandler):
    """Performs SEND_F and SEND_B, and starts RECV_F and RECV_B ahead of their places."""

    kinds = frozenset({"SEND_F", "SEND_B", "RECV_F", "RECV_B"})

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        """Returns the pass that adds transfers, including those of values that skip stages."""
        return {"send_recv": True, "skip_edges": plan.skip_edges()}

    def post(self, action: Action, run: StepRun) -> None:
        """Posts a receive."""
        microbatch = run.microbatches[action.microbatch]
        is_recorded = run.was_recorded(action.microbatch)
        if action.kind == "RECV_F" and not is_recorded:
            microbatch.values.receive_from(action.other, action.stage)
        elif action.kind == "RECV_B":
            microbatch.gradients.receive_from(action.other, action.stage, is_first=is_recorded)

    def perform(self, action: Action, run: StepRun) -> None:
        """Sends a value or gradient; a received one is waited for where it is used."""
        microbatch = run.microbatches[action.microbatch]
        is_recorded = run.was_recorded(action.microbatch)
        if action.kind == "SEND_F" and not is_recorded:
            microbatch.values.send_to(action.stage, action.other)
        elif action.kind == "SEND_B":
            microbatch.gradients.send_to(action.stage, action.other, is_first=is_recorded)
