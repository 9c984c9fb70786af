"""The loss of one microbatch, and the checks that a schedule can run its backward."""

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
        step: The state shared by the microbatches of the step.

    Attributes:
        stage: The stage that computed the loss; -1 before check(), or if there is no loss.
        value: The loss without its graph, on the rank of that stage.
        dtype: The dtype of the loss, on all ranks.
    """

    def __init__(self, step: Step) -> None:
        self.stage = -1
        self.value: Tensor | None = None
        self.dtype = torch.float32
        self._step = step
        self._named: tuple[Any] | None = None
        self._root: Tensor | None = None

    def name(self, loss: Any) -> None:
        """Records the loss whose backward the schedule runs, or whose mean is requested.

        Raises:
            RuntimeError: The microbatch already has a loss.
        """
        if self._named is not None:
            raise RuntimeError(
                "[smdp] backward() is called twice in one microbatch; add the losses and call it once"
            )
        self._named = (loss,)

    def check(self) -> None:
        """Checks the recorded loss, once the program has ended.

        Raises:
            RuntimeError: This microbatch has a loss and the first one has none, or the other way round.
            ValueError: The loss cannot be differentiated.
        """
        if self._step.plan.is_complete and self._step.needs_grad:
            self._check_same_end()
        if self._named is not None:
            (loss,) = self._named
            self._named = None
            self._check_value(loss)

    def take_root(self, stage: int) -> Tensor | None:
        """Returns the loss with its graph and releases it; None if another stage computed the loss."""
        if self.stage != stage:
            return None
        root, self._root = self._root, None
        return root

    def _check_same_end(self) -> None:
        """Checks that the program has a loss if the first microbatch had one, as the schedule is fixed."""
        has_loss = self._named is not None
        if has_loss == (self._step.plan.loss_stage >= 0):
            return
        calls = "calls backward(), but did not" if has_loss else "does not call backward(), but did"
        raise RuntimeError(
            f"[smdp] the step {calls} in its first microbatch with arguments of these shapes; it must do so"
            " always or never. If this depends on a flag, pass the flag to the step as an argument, such as a"
            " bool, or evaluate under torch.no_grad()."
        )

    def _check_value(self, loss: Any) -> None:
        value = value_of(loss) if isinstance(loss, Tensor) else None
        if value is None:
            what = type(loss).__name__ if not isinstance(loss, Tensor) else "a tensor"
            raise ValueError(
                f"[smdp] the loss is {what} that does not depend on any stage of the model; expected a scalar"
                " tensor computed from the model's output"
            )
        if value.ghost.numel() != 1:
            raise ValueError(
                f"[smdp] the loss is {value.text()}; expected one number. Take its mean() or sum()."
            )
        if self._step.needs_grad and not value.needs_grad:
            raise ValueError(
                "[smdp] the loss has no gradient: it uses no parameter that requires one, or it was detached."
                " Return the loss as it was computed."
            )
        self.stage = self._step.plan.loss_stage = value.stage
        if not self._step.plan.is_complete:
            find_gradients(self._step.plan.values, value)
        self.dtype = value.ghost.dtype
        if self._step.is_mine(value.stage):
            self._root = loss
            self.value = loss.detach().reshape(())
