"""An optimizer that updates 16-bit parameters in 32 bits, and scales the loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.precision.accepted_models import check_arguments, lowered
from smdp.torch.precision.clipping import check_max_norm, wide_norm_of_gradients
from smdp.torch.precision.loss_scales import DynamicLossScale, LossScale, check_scale, made_loss_scale
from smdp.torch.precision.overflows import Agreement, has_overflow
from smdp.torch.precision.whole_masters import WholeMasters
from smdp.torch.precision.wide_sums import WideSums

STATE = "mixed_precision"  # the key of the loss scale in a saved state


class MixedPrecision(OptimizerLink):
    """Trains a model whose parameters and gradients have 16 bits, with masters of 32 bits in the optimizer.

    A step updates the masters and rounds them into the parameters. Of a `ShardedOptimizer`, each rank keeps
    the masters of its shard. Parameters with 32 bits are their own masters. The groups have the parameters
    of the model. Learning rate schedulers take this object or the wrapped optimizer.

    The loss is multiplied by `loss_scale`: call `backward(loss)` in place of `loss.backward()`, or pass this
    object as `scaler` to `train_step()` of a pipeline. A dynamic scale skips the step on all ranks if a
    gradient of any of them is infinite or NaN, and then shrinks.

    Args:
        optimizer: A torch optimizer of the model's parameters, or a
            `ShardedOptimizer(..., master_dtype=torch.float32)`.
        model: The model, converted by `lower_precision()`. A model that is not wrapped yet is converted here.
        dtype: `torch.bfloat16` or `torch.float16`.
        masters: "fp32", the only choice.
        loss_scale: "dynamic", a number above 0 that stays the same, or a `DynamicLossScale`. Default:
            "dynamic" for `torch.float16`, and 1 for `torch.bfloat16`, which has the range of 32 bits. With a
            number, steps do not look for overflows.
        accumulate_in_fp32: Whether gradients are added up in 32 bits over microbatches, which takes 4 more
            bytes per parameter from the second backward to the step. The sum is rounded for the average over
            ranks. A `ShardedOptimizer` needs `no_sync()` for all microbatches but the last.

    Attributes:
        overflow: Whether the last step was skipped.

    Raises:
        ValueError: An argument, the optimizer or the model is not supported. Nothing is changed then.

    Example:
        >>> optimizer = torch.optim.AdamW(model.parameters())  # doctest: +SKIP
        >>> optimizer = smdp.torch.MixedPrecision(optimizer, model)  # doctest: +SKIP
        >>> model = smdp.torch.DistributedDataParallel(model)  # doctest: +SKIP
        >>> optimizer.backward(loss_fn(model(x), y))  # doctest: +SKIP
        >>> optimizer.clip_master_grads(1.0)  # doctest: +SKIP
        >>> optimizer.step()  # doctest: +SKIP
    """

    takes_loss_scale = True  # to refuse it
    needs_all_gradients = True
    # A loss scaler would otherwise unscale the gradients itself.
    _step_supports_amp_scaling = True
    # What messages recommend. SMP's API has other names.
    _to_scale = "Call optimizer.backward(loss), or pass scaler=optimizer to train_step() of a pipeline."
    _to_fix_scale = "Pass loss_scale=NUMBER"

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        dtype: torch.dtype = torch.bfloat16,
        masters: str = "fp32",
        loss_scale: float | str | DynamicLossScale | None = None,
        *,
        accumulate_in_fp32: bool = False,
    ) -> None:
        sharded = check_arguments(optimizer, model, dtype, masters)
        scale = made_loss_scale(loss_scale, is_dynamic_by_default=dtype is torch.float16)
        lowered(optimizer, model, dtype)
        super().__init__(optimizer)
        self._model = model
        self._scale = scale
        self._sharded = sharded
        self._masters = None if sharded is not None else WholeMasters(optimizer)
        self._sums = WideSums(self._parameters()) if accumulate_in_fp32 else None
        self._agreement = Agreement(model, sharded)
        self._found: bool | None = None  # whether the gradients have an overflow, once that is known
        self._clipping = 1.0  # the factor of the last clipping
        self._is_scaled = False  # whether the loss was multiplied since the last step
        self._has_compared = False
        self.overflow = False

    def __setattr__(self, name: str, value: Any) -> None:
        """Sets an attribute.

        Raises:
            RuntimeError: A `GradScaler` steps this optimizer.
        """
        if name in ("grad_scale", "found_inf"):
            raise RuntimeError(
                "[smdp] a GradScaler steps a MixedPrecision, which scales the loss itself. Remove the scaler:"
                " call optimizer.backward(loss) and optimizer.step()."
            )
        super().__setattr__(name, value)

    @property
    def loss_scale(self) -> float:
        """What the loss is multiplied by. A number can be assigned; a dynamic scale continues from there."""
        return self._scale.value

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        check_scale("loss_scale", value)
        before, self._scale.value = self._scale.value, float(value)
        self._rescale(before)

    @property
    def loss_scaler(self) -> LossScale:
        """The loss scale as an object."""
        return self._scale

    @property
    def state(self) -> Any:
        """The state by the parameters of the model; of a `ShardedOptimizer`, by this rank's pieces."""
        return self.inner.state if self._masters is None else self._masters.state()

    def master_of(self, parameter: Parameter) -> Parameter:
        """Returns what is updated in place of a parameter: its master, or itself if it has 32 bits.

        Raises:
            RuntimeError: The masters are distributed over the ranks.
        """
        if self._masters is None:
            raise RuntimeError(
                "[smdp] MixedPrecision: each rank has only pieces of the masters. Call owned() for those of"
                " this rank."
            )
        return self._masters.of(parameter)

    def forget_gradients(self) -> None:
        """Forgets what is known of gradients that change."""
        self._found, self._clipping = None, 1.0

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss with 32 bits, times the loss scale."""
        self.forget_gradients()
        self._is_scaled = True
        return loss.float() if self._scale.value == 1.0 else loss.float() * self._scale.value

    def backward(self, loss: Tensor, **options: Any) -> None:
        """Computes the gradients of the loss times the loss scale.

        Args:
            loss: The loss.
            **options: The keyword arguments of `torch.Tensor.backward`.

        Raises:
            RuntimeError: The model is a pipeline, which runs its backward itself.
        """
        if isinstance(self._model, PipelinedModule):
            raise RuntimeError(
                "[smdp] MixedPrecision.backward(): a pipeline computes its gradients itself. Call"
                " pipe.train_step(batch, loss_fn, scaler=optimizer)."
            )
        self.scale(loss).backward(**options)

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> float:
        """Makes the next step scale the gradients so that their norm is at most `max_norm`. Collective.

        The norm is that of one process, over all stages, slices and shards.

        Args:
            max_norm: The largest norm, above 0.
            norm_type: The order of the norm; "inf" for the largest absolute value.

        Returns:
            The norm before clipping and without the loss scale; -1 if a gradient has an overflow, which only
            a dynamic scale looks for.

        Raises:
            ValueError: `max_norm` is not above 0.
        """
        check_max_norm(max_norm)
        if self._scale.is_dynamic and self._has_overflow():
            return -1.0
        whole = wide_norm_of_gradients(self._parameters(), self._model, float(norm_type))
        # Sums of shards differ from those of whole tensors in the last of 64 bits.
        norm = float(whole.float()) / self._scale.value
        if self._scale.is_dynamic and not math.isfinite(norm):
            self._found = True  # the sum of finite gradients overflows, the same on all ranks
            return -1.0
        self._clipping = min(max_norm / (norm + 1e-6), 1.0)
        return norm

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the masters and the parameters, or skips the step on all ranks after an overflow.

        Args:
            closure: Computes the loss and its gradients by `backward()`. Not possible with a dynamic scale.

        Returns:
            What the step of the wrapped optimizer returns; None if it was skipped.

        Raises:
            RuntimeError: There is a closure and a dynamic scale, or the loss was not scaled.
        """
        if closure is not None and self._scale.is_dynamic:
            raise RuntimeError(
                "[smdp] MixedPrecision.step(closure): a dynamic loss scale cannot repeat or skip what a"
                f" closure does. {self._to_fix_scale}, or call backward(loss) and step() without a closure."
            )
        before = self._scale.value
        if closure is None:
            self._check_is_scaled()
        if self._scale.is_dynamic:
            self.overflow = self._has_overflow()
            self._scale.update(has_overflow=self.overflow)
        clipping = self._clipping
        self.forget_gradients()
        self._is_scaled = False
        try:
            if self.overflow:
                return None
            # A factor of 0 is that of an infinite norm.
            return self._update(before / clipping if clipping else math.inf, closure)
        finally:
            self._rescale(before)
            if self._sums is not None:
                self._sums.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of the parameters."""
        self.forget_gradients()
        if self._sums is not None:
            self._sums.clear()
        if self._masters is None:
            self.inner.zero_grad(set_to_none)
            return
        for parameter in self._parameters():
            if parameter.grad is not None:
                if set_to_none:
                    parameter.grad = None
                else:
                    parameter.grad = parameter.grad.detach().zero_()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters of the model."""
        self.inner.add_param_group(param_group)
        if self._masters is not None:
            self._masters.add_new()
        if self._sums is not None:
            for parameter in self._parameters():
                self._sums.add(parameter)

    def keep_parameters(self, kept: Mapping[Parameter, Parameter]) -> None:
        """Drops parameters and replaces the others; see `optimizers.kept_parameters`."""
        if self._masters is not None:
            self._masters.keep(kept)
        super().keep_parameters(kept)
        if self._masters is not None:
            self._masters.add_new()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state of the wrapped optimizer with the masters, and the loss scale.

        Of a `ShardedOptimizer`, call `consolidate()` first. The state of both has the same form.
        """
        found = self.inner.state_dict() if self._masters is None else self._masters.state_dict()
        return {**found, STATE: self._scale.state()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes a state. Without masters in it, they become the parameters' values.

        Raises:
            ValueError: The state is that of another optimizer, or of other parameters.
        """
        given = dict(state_dict)
        scale = given.pop(STATE, None)
        if self._masters is None:
            self.inner.load_state_dict(given)
        else:
            self._masters.load_state_dict(given)
        if scale is not None:
            self._scale.load(scale)
        self.forget_gradients()

    def loss_scale_state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of the loss scale."""
        return self._scale.state()

    def load_loss_scale(self, state: Mapping[str, Any]) -> None:
        """Takes the loss scale of a checkpoint."""
        self._scale.load(state)

    def _parameters(self) -> list[Parameter]:
        return [parameter for group in self.inner.param_groups for parameter in group["params"]]

    def _has_overflow(self) -> bool:
        if self._found is None:
            own = has_overflow(self._parameters())
            self._found, self._is_scaled = self._agreement.any(own, self._is_scaled)
        return self._found

    def _check_is_scaled(self) -> None:
        """Checks that the gradients are those of a scaled loss."""
        if self._scale.value == 1.0:
            return
        if isinstance(self._model, PipelinedModule):
            # Only the rank of the last stage scales a loss. A script does so always or never.
            if self._scale.is_dynamic:
                self._has_overflow()
            elif not self._has_compared:
                (self._is_scaled,) = self._agreement.any(self._is_scaled)
            else:
                return
            self._has_compared = True
        if not self._is_scaled:
            raise RuntimeError(
                f"[smdp] MixedPrecision.step() divides the gradients by the loss scale {self._scale.value},"
                f" but the loss was not multiplied by it since the last step. {self._to_scale}"
            )

    def _update(self, divisor: float, closure: Callable[[], Any] | None) -> Any:
        """Makes a step with the gradients divided by the loss scale, and clipped."""
        scale = None if divisor == 1.0 else torch.tensor(divisor, dtype=torch.float64)
        if self._masters is not None:
            # As torch's GradScaler computes it.
            factor = None if scale is None else scale.reciprocal().float()
            return self._masters.step(factor, closure)
        inner: Any = self.inner
        if scale is None:
            return super().step(closure)
        inner.grad_scale, inner.found_inf = scale, None
        try:
            return super().step(closure)
        finally:
            del inner.grad_scale, inner.found_inf

    def _rescale(self, before: float) -> None:
        """Rescales the compression errors that the model keeps, after the loss scale has changed."""
        if self._scale.value != before and hasattr(self._model, "rescale_residuals"):
            self._model.rescale_residuals(self._scale.value / before)
