"""Handlers that sum gradients over replicas and tied weights, at their places in the schedule."""

from __future__ import annotations

from collections.abc import Sequence

from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.lowering import Passes
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.gradients.gradient_reduction import GradientReduction
from smdp.torch.pipelining.gradients.tied_gradients import TiedGradients
from smdp.torch.pipelining.interpreter.plan import Plan


class ReductionActions(ActionHandler):
    """Performs REDUCE_GRAD and REDUCE_TIED.

    Args:
        replicas: Averages the gradients of a stage over data-parallel replicas.
        tied: Adds the gradients of a group of tied weights.
        groups: The groups of virtual stages that share weights.
    """

    kinds = frozenset({"REDUCE_GRAD", "REDUCE_TIED"})

    def __init__(
        self, replicas: GradientReduction, tied: TiedGradients, groups: Sequence[Sequence[int]]
    ) -> None:
        self._replicas = replicas
        self._tied = tied
        self._groups = groups

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        """Returns the passes that add reductions, if the step computes gradients."""
        return {"reduce_grad": True, "tied": self._groups} if has_backward else {}

    def perform(self, action: Action, run: StepRun) -> None:
        """Starts a stage's reduction, or adds the gradients of tied weights once their means are there."""
        if action.kind == "REDUCE_GRAD":
            self._replicas.reduce(action.stage)
            return
        self._replicas.finish()
        self._tied.reduce(action.microbatch)
