"""The loss of one microbatch: what the program names, and whether a schedule can begin a backward with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdp.torch.pipelining.engine.one_step import Step
from smdp.torch.pipelining.tensors.differentiation import find_gradients
from smdp.torch.pipelining.tensors.values import value_of


class MicrobatchLoss:
    """Checks the loss of a microbatch once its program has ended.

    Args:
        step: What the microbatch shares with the others.

    Attributes:
        stage: That has the loss; -1 before it is checked, or where there is none.
        value: The loss without its graph, on the rank of that stage.
        dtype: Of the loss, on all ranks.
    """

    def __init__(self, step: Step) -> None:
        self.stage = -1
        self.value: Tensor | None = None
        self.dtype = torch.float32
        self._step = step
        self._named: tuple[Any] | None = None
        self._root: Tensor | None = None

    def name(self, loss: Any) -> None:
        """Notes the value whose backward the schedule runs, or whose mean is wanted.

        Raises:
            RuntimeError: There is one already.
        """
        if self._named is not None:
            raise RuntimeError(
                "[smdp] backward() is called twice in one microbatch; add the losses and call it once"
            )
        self._named = (loss,)

    def check(self) -> None:
        """Checks what the program has named, now that it has ended.

        Raises:
            RuntimeError: The first microbatch has named a loss, and this one has not, or the other way round.
            ValueError: Nothing can be differentiated by it.
        """
        if self._step.plan.is_complete and self._step.needs_grad:
            self._check_same_end()
        if self._named is not None:
            (loss,) = self._named
            self._named = None
            self._check_value(loss)

    def take_root(self, stage: int) -> Tensor | None:
        """Returns the loss with its graph if a stage has it, and forgets it."""
        if self.stage != stage:
            return None
        root, self._root = self._root, None
        return root

    def _check_same_end(self) -> None:
        """The schedule has been chosen: with backwards, or without."""
        has_loss = self._named is not None
        if has_loss == (self._step.plan.loss_stage >= 0):
            return
        calls = "calls backward(), and did not" if has_loss else "does not call backward(), and did"
        raise RuntimeError(
            f"[smdp] the step {calls} in its first microbatch with arguments of these shapes; allowed: always"
            " or never. Give the step what decides it as an argument, for instance a bool, or evaluate under"
            " torch.no_grad()."
        )

    def _check_value(self, loss: Any) -> None:
        value = value_of(loss) if isinstance(loss, Tensor) else None
        if value is None:
            what = type(loss).__name__ if not isinstance(loss, Tensor) else "a tensor"
            raise ValueError(
                f"[smdp] the loss is {what} that depends on no stage of the model; allowed: a"
                " scalar tensor computed from the model's output"
            )
        if value.ghost.numel() != 1:
            raise ValueError(
                f"[smdp] the loss is {value.text()}; allowed: one number. Take its mean() or sum()."
            )
        if self._step.needs_grad and not value.needs_grad:
            raise ValueError(
                "[smdp] the loss has no gradient: no parameter that requires one is used, or the loss was"
                " detached. Return it as it was computed."
            )
        self.stage = self._step.plan.loss_stage = value.stage
        if not self._step.plan.is_complete:
            find_gradients(self._step.plan.values, value)
        self.dtype = value.ghost.dtype
        if self._step.is_mine(value.stage):
            self._root = loss
            self.value = loss.detach().reshape(())
