"""The part of `smp.DistributedOptimizer` for 16-bit training: loss scale, overflows, masters and clipping."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp._shown import shown
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.training.virtual_parameters import VirtualParameters
from smdp.torch.precision.loss_scales import DynamicLossScale, LossScale, StaticLossScale, check_scale
from smdp.torch.precision.mixed_precision import MixedPrecision
from smdp.torch.precision.precision_optimizer import PrecisionOptimizer
from smdp.torch.precision.scaled_shards import ScaledShards

_ARGUMENTS = ("init_scale", "scale_factor", "scale_window", "min_scale", "delayed_shift")


class _Masters(MixedPrecision):
    """A `MixedPrecision` whose messages have the names of SMP's API."""

    _to_scale = "Call model.backward(loss)."
    _to_fix_scale = "Pass dynamic_loss_scale=False to smp.DistributedOptimizer"


class LossScaling(VirtualParameters):
    """A link that has a loss scale with the key `fp16`.

    From the cut on, the next link is a `MixedPrecision`, or with sharded data parallelism a `ScaledShards`.
    Without `fp16`, the scale is 1 and no step is skipped.
    """

    inner: PrecisionOptimizer | MixedPrecision | ScaledShards
    _before_cut: LossScale | None = None

    def set_loss_scale(
        self, static: float | None, *, is_dynamic: bool, arguments: Mapping[str, Any] | None
    ) -> None:
        """Takes the arguments for the loss scale, which have no effect without `fp16`.

        Raises:
            ValueError: One is not valid.
        """
        if not state.cfg.fp16:
            return
        if not is_dynamic:
            self._before_cut = StaticLossScale(1.0 if static is None else static)
            return
        given = dict(arguments or {})
        consecutive = given.pop("consecutive_hysteresis", False)
        unknown = [name for name in given if name not in _ARGUMENTS]
        if unknown:
            raise ValueError(
                f"[smdp] smp.DistributedOptimizer got dynamic_loss_args with {shown(unknown[0])}; allowed:"
                f" {', '.join(_ARGUMENTS)}, consecutive_hysteresis"
            )
        self._before_cut = DynamicLossScale(**given, consecutive_hysteresis=bool(consecutive))

    @property
    def loss_scale(self) -> float:
        """What `model.backward()` multiplies the loss by. A number can be assigned."""
        if isinstance(self.inner, MixedPrecision | ScaledShards):
            return self.inner.loss_scale
        return 1.0 if self._before_cut is None else self._before_cut.value

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        check_scale("loss_scale", value)
        if isinstance(self.inner, MixedPrecision | ScaledShards):
            self.inner.loss_scale = value
        elif self._before_cut is not None:
            self._before_cut.value = float(value)
        else:
            raise ValueError(
                f"[smdp] loss_scale = {value} has no effect without the key fp16; set fp16 to true, or use"
                " smp.amp.GradScaler"
            )

    @property
    def dynamic_loss_scale(self) -> bool:
        """Whether the loss scale changes with overflows."""
        return self.loss_scaler is not None and self.loss_scaler.is_dynamic

    @property
    def loss_scaler(self) -> LossScale | None:
        """The loss scale as an object; None without `fp16`."""
        return (
            self.inner.loss_scaler
            if isinstance(self.inner, MixedPrecision | ScaledShards)
            else self._before_cut
        )

    @property
    def overflow(self) -> bool:
        """Whether the last step was skipped because of an fp16 overflow."""
        return self.inner.overflow

    @property
    def master_params_created(self) -> bool:
        """Whether there are masters in fp32, which are made when the model is cut."""
        return isinstance(self.inner, MixedPrecision | ScaledShards)

    @property
    def fp16_groups(self) -> list[list[Parameter]]:
        """This rank's parameters with fp16, by group; with sharded data parallelism, all parameters."""
        if state.model is not None and state.model.shards is not None:
            return self._groups()
        return [[each for each in group if each.dtype is torch.float16] for group in self._groups()]

    @property
    def fp32_from_fp16_groups(self) -> list[list[Parameter]]:
        """The masters of `fp16_groups`. With `shard_optimizer_state`, those of this rank's pieces."""
        if not isinstance(self.inner, MixedPrecision | ScaledShards):
            return [[] for _ in self.param_groups]
        if self.sharded is None:
            return [[self.inner.master_of(each) for each in group] for group in self.fp16_groups]
        owned = self.sharded.owned()
        names = {parameter: name for name, parameter in state.model.named_parameters()}
        return [[piece for each in group for _, piece in owned[names[each]]] for group in self.fp16_groups]

    @property
    def fp32_partitioned_groups_flat(self) -> list[Tensor]:
        """Copies of this rank's shards of the parameters, one flat tensor per group.

        Raises:
            AttributeError: The key `sharded_data_parallel_degree` is 1.
        """
        self._shards("fp32_partitioned_groups_flat")
        return [
            torch.cat([parameter.ds_tensor.detach().reshape(-1).float() for parameter in group])
            if group
            else torch.empty(0)
            for group in self._groups()
        ]

    @property
    def ds_param_shard_group(self) -> Any:
        """The process group of the ranks whose shards make up one copy of the model.

        Raises:
            AttributeError: The key `sharded_data_parallel_degree` is 1.
        """
        return self._shards("ds_param_shard_group").shard_group

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss from which backward starts: with `fp16` in fp32, times the loss scale."""
        return self.inner.scale(loss) if isinstance(self.inner, MixedPrecision | ScaledShards) else loss

    def forget_gradients(self) -> None:
        """Forgets what is known of gradients. The model calls this before a step computes new ones."""
        if isinstance(self.inner, MixedPrecision | ScaledShards):
            self.inner.forget_gradients()

    def update_master_grads(self) -> None:
        """Does nothing: `clip_master_grads()` and `step()` read the parameters' own gradients."""

    def clip_master_grads(self, max_norm: float, norm_type: float = 2.0) -> Tensor | float:
        """Clips the norm of gradients over all ranks of the model to `max_norm`. Collective.

        Args:
            max_norm: The largest norm, above 0.
            norm_type: The order of the norm; "inf" for the largest absolute value.

        Returns:
            The norm before clipping, without the loss scale; -1 after an overflow of a dynamic scale.
        """
        state.model.finish_gradients()
        if isinstance(self.inner, MixedPrecision | ScaledShards):
            return self.inner.clip_master_grads(max_norm, norm_type)
        pipe = state.model.pipe
        return self.inner.clip_master_grads(
            max_norm, state.model.parameters() if pipe is None else pipe, norm_type
        )

    def shard(self) -> None:
        """Shards the state, and makes masters, if the configuration says so. All ranks of the job call it.

        Raises:
            ValueError: The optimizer or the model is not supported.
        """
        super().shard()
        if self._before_cut is None or isinstance(self.inner, MixedPrecision | ScaledShards):
            return
        scale, model = self._before_cut, state.model
        if model.shards is not None:
            self.inner = ScaledShards(self.inner.inner, model.shards, scale)
            return
        self.inner = _Masters(
            self.inner.inner,
            model.get_module() if model.pipe is None else model.pipe,
            torch.float16,
            loss_scale=scale if isinstance(scale, DynamicLossScale) else scale.value,
        )

    def _shards(self, name: str) -> Any:
        if state.model is None or state.model.shards is None:
            raise AttributeError(
                f"[smdp] smp.DistributedOptimizer has {name} only with sharded_data_parallel_degree above 1"
            )
        return state.model.shards

    def _groups(self) -> list[list[Parameter]]:
        return [list(group["params"]) for group in self.param_groups]
