"""An optimizer whose step is postponed and carried out in parts."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.optimizers.step_part import has_step_hooks, step_part
from smdp.torch.step_in_forward.pending_gradient import PendingGradient

_SCHEDULER = "_wrapped_by_lr_sched"


class DeferredOptimizer:
    """Makes `optimizer.step()` record the step, which `step()` of this object then carries out in parts.

    Args:
        optimizer: The optimizer, which must keep its state per parameter.
        settle: Waits for all gradients and calls `step()` for all parameters. It is called when a step cannot
            be postponed.
    """

    def __init__(self, optimizer: Optimizer, settle: Callable[[], None]) -> None:
        self.optimizer = optimizer
        self._settle = settle
        self._step = optimizer.step
        # The groups as they were at step(), without parameters, because a scheduler may change them before
        # the step is carried out; and the group's number by the id of each parameter that had a gradient.
        self._noted: tuple[list[dict[str, Any]], dict[int, int]] | None = None

        def step(_: Optimizer, closure: Callable[[], Any] | None = None) -> None:
            self._note(closure)

        # A scheduler checks that step() is the method that it has wrapped, and that it was called.
        self._has_scheduler = hasattr(optimizer.step, _SCHEDULER)
        if self._has_scheduler:
            setattr(step, _SCHEDULER, True)
        optimizer.step = types.MethodType(step, optimizer)

    def forget(self) -> None:
        """Discards the recorded step. `step()` then does nothing until the optimizer's `step()` is called."""
        self._noted = None

    def step(self, parameters: Iterable[Parameter]) -> None:
        """Carries out the recorded step for those parameters that belong to the optimizer.

        Raises:
            RuntimeError: The optimizer keeps state for a whole group of parameters.
        """
        if self._noted is None:
            return
        groups, group_of = self._noted
        mine = [parameter for parameter in parameters if id(parameter) in group_of]
        if not mine:
            return
        parts: list[list[Parameter]] = [[] for _ in groups]
        for parameter in mine:
            parts[group_of[id(parameter)]].append(parameter)
        key = step_part(self.optimizer, self._step, groups, parts)
        if key is not None:
            raise RuntimeError(
                f"[smdp] {type(self.optimizer).__name__} keeps {key!r} for a whole group of parameters."
                " StepInForward supports only optimizers that keep their state per parameter. Use such an"
                " optimizer, or remove StepInForward."
            )

    def _note(self, closure: Callable[[], Any] | None) -> None:
        if closure is not None:
            raise ValueError(
                "[smdp] StepInForward: step() got a closure, which it does not support because the gradients"
                " arrive later. Call step() without arguments."
            )
        if has_step_hooks(self.optimizer):
            raise ValueError(
                "[smdp] StepInForward: the optimizer has step hooks, which would run once for every unit."
                " Remove the hooks."
            )
        groups = self.optimizer.param_groups
        present = [one.grad for group in groups for one in group["params"] if one.grad is not None]
        if self._noted is not None or not all(isinstance(grad, PendingGradient) for grad in present):
            self._settle()
            self.forget()
            present = []
        if not present:
            self._step()
            return
        if self._has_scheduler:
            self.optimizer._opt_called = True
        group_of = {
            id(parameter): number
            for number, group in enumerate(groups)
            for parameter in group["params"]
            if parameter.grad is not None
        }
        self._noted = ([_copy(group) for group in groups], group_of)


def _copy(group: dict[str, Any]) -> dict[str, Any]:
    """Copies a group without its parameters. Tensors are cloned, since a scheduler changes them in place."""
    return {
        key: value.detach().clone() if isinstance(value, Tensor) else value
        for key, value in group.items()
        if key != "params"
    }
