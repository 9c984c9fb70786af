"""Loss scaling for parameters in shards with 32 bits, of a model that computes in fp16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.precision.clipping import check_max_norm, clip_grad_norm_
from smdp.torch.precision.loss_scales import LossScale, check_scale
from smdp.torch.precision.mixed_precision import STATE
from smdp.torch.precision.overflows import Agreement, has_overflow
from smdp.torch.sharded_parameters.sharded_data_parallel import ShardedDataParallel


class ScaledShards(OptimizerLink):
    """Divides the gradients of a `ShardedDataParallel` by the loss scale, and skips steps with an overflow.

    The shards of the parameters are their own masters. An overflow on any rank skips the step on all.

    Args:
        optimizer: The optimizer of the model's parameters.
        model: The model.
        scale: The loss scale.

    Attributes:
        overflow: Whether the last step was skipped.
        loss_scaler: The loss scale as an object.
    """

    def __init__(self, optimizer: Optimizer, model: ShardedDataParallel, scale: LossScale) -> None:
        super().__init__(optimizer)
        self.loss_scaler = scale
        self.overflow = False
        self._agreement = Agreement(model)
        self._found: bool | None = None  # whether the gradients have an overflow, once that is known
        self._is_divided = False
        self._is_scaled = False  # whether the loss was multiplied since the last step

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by. A number can be assigned."""
        return self.loss_scaler.value

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        check_scale("loss_scale", value)
        self.loss_scaler.value = float(value)

    def master_of(self, parameter: Parameter) -> Parameter:
        """Returns what is updated in place of a parameter: the shard itself."""
        return parameter

    def forget_gradients(self) -> None:
        """Forgets what is known of gradients that change."""
        self._found, self._is_divided = None, False

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss with 32 bits, times the loss scale."""
        self.forget_gradients()
        self._is_scaled = True
        return loss.float() * self.loss_scale

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Scales gradients so that their norm is at most `max_norm`. Collective.

        Returns:
            The norm before clipping and without the loss scale; -1 after an overflow of a dynamic scale.

        Raises:
            ValueError: `max_norm` is not above 0.
            RuntimeError: The loss was not scaled.
        """
        check_max_norm(max_norm)
        self._check_is_scaled("clip_master_grads")
        if self.loss_scaler.is_dynamic and self._has_overflow():
            return -1.0
        self._divide()
        return float(clip_grad_norm_(self._parameters(), max_norm, norm_type))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the shards, or skips the step on all ranks after an overflow.

        Raises:
            RuntimeError: There is a closure, or the loss was not scaled.
        """
        if closure is not None:
            raise RuntimeError(
                "[smdp] step(closure): a loss scale cannot be applied to the gradients that a closure"
                " computes. Call model.backward(loss) and step() without a closure."
            )
        self._check_is_scaled("step")
        if self.loss_scaler.is_dynamic:
            self.overflow = self._has_overflow()
        if not self.overflow:
            self._divide()
        self.forget_gradients()
        self._is_scaled = False
        if self.loss_scaler.is_dynamic:
            self.loss_scaler.update(has_overflow=self.overflow)
        return None if self.overflow else super().step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients."""
        self.forget_gradients()
        super().zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped optimizer and the loss scale."""
        return {**super().state_dict(), STATE: self.loss_scaler.state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a state, with or without a loss scale."""
        given = dict(state_dict)
        scale = given.pop(STATE, None)
        super().load_state_dict(given)
        if scale is not None:
            self.loss_scaler.load(scale)
        self.forget_gradients()

    def loss_scale_state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the loss scale."""
        return self.loss_scaler.state()

    def load_loss_scale(self, state: Mapping[str, Any]) -> None:
        """Takes the loss scale of a checkpoint."""
        self.loss_scaler.load(state)

    def _parameters(self) -> list[Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _has_overflow(self) -> bool:
        if self._found is None:
            own = has_overflow(self._parameters())
            self._found, self._is_scaled = self._agreement.any(own, self._is_scaled)
        return self._found

    def _check_is_scaled(self, call: str) -> None:
        """Checks that the gradients are those of a scaled loss."""
        if self.loss_scale == 1.0:
            return
        if self.loss_scaler.is_dynamic:
            self._has_overflow()  # the ranks agree on whether the loss was scaled, too
        if not self._is_scaled:
            raise RuntimeError(
                f"[smdp] {call}() divides the gradients by the loss scale {self.loss_scale}, but the loss was"
                " not multiplied by it since the last step. Call model.backward(loss) in place of"
                " loss.backward()."
            )

    def _divide(self) -> None:
        if self._is_divided or self.loss_scale == 1.0:
            return
        self._is_divided = True
        with torch.no_grad():
            for parameter in self._parameters():
                gradient = parameter.grad
                if gradient is not None:
                    own = gradient._local_tensor if isinstance(gradient, DTensor) else gradient
                    own.mul_(1.0 / self.loss_scale)
