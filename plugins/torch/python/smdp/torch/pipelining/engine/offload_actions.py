"""Handlers that move the saved tensors of stages out of memory and back, at their places in the schedule."""

from __future__ import annotations

from typing import Any

from torch import nn

from smdp.torch.offload.saved_tensors import LEAST_BYTES, Store
from smdp.torch.offload.stage_activations import StageActivations
from smdp.torch.pipelining.engine.actions import Action
from smdp.torch.pipelining.engine.handlers import ActionHandler
from smdp.torch.pipelining.engine.lowering import Passes
from smdp.torch.pipelining.engine.step_run import StepRun
from smdp.torch.pipelining.interpreter.plan import Plan
from smdp.torch.pipelining.tensors.containers import tensors_in


class OffloadActions(ActionHandler):
    """Performs OFFLOAD and RELOAD.

    Args:
        store: Where tensors go.
        horizon: How many tasks of a rank before its backward a microbatch's tensors return.
        stages: The number of virtual stages.
        module: The model, whose parameters and buffers stay in memory.

    Attributes:
        least: The fewest bytes of a tensor that leaves.
    """

    kinds = frozenset({"OFFLOAD", "RELOAD"})

    def __init__(self, store: Store, horizon: int, stages: int, module: nn.Module) -> None:
        self.least = LEAST_BYTES
        self._store = store
        self._horizon = horizon
        self._stages = stages
        self._module = module

    def new_step(self, inputs: Any) -> StageActivations:
        """Returns the room for what the stages of one step save.

        Args:
            inputs: The microbatches, which the caller keeps in memory.
        """
        kept = [*self._module.parameters(), *self._module.buffers(), *tensors_in(inputs)]
        kept = [each for each in kept if not each.is_meta]
        return StageActivations(self._store, self._horizon, kept, self.least)

    def passes(self, plan: Plan, *, has_backward: bool) -> Passes:
        """Returns the pass that adds these actions to all stages, if the step computes gradients."""
        return {"offload": range(self._stages), "offload_horizon": self._horizon} if has_backward else {}

    def perform(self, action: Action, run: StepRun) -> None:
        """Begins to move the tensors of a stage and microbatch away, or back."""
        saved = run.step.saved
        assert saved is not None
        if action.kind == "OFFLOAD":
            run.microbatches[action.microbatch].values.release_leaves(action.stage)
            saved.leave(action.stage, action.microbatch)
        else:
            saved.come_back(action.stage, action.microbatch)
