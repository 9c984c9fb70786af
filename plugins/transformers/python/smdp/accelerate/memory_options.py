"""What a model that Accelerate prepares keeps in memory: recomputation, offloading and 16 bits."""

from __future__ import annotations

import math
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.optim import Optimizer

from smdp.accelerate.sharded_optimizers import ShardedOptimizers
from smdp.accelerate.wrapped_models import PreparedModels
from smdp.torch.plugin_support import (
    DynamicLossScale,
    MixedPrecision,
    PipelinedModule,
    Policy,
    checkpoint_activations,
    is_offloaded,
    lower_precision,
    offload_activations,
    read_policy,
    target_of,
)

_FIRST_SCALE = 2.0**16  # that of Accelerate's own mixed precision
_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class MemoryOptions:
    """Applies the options that save memory to models and their optimizers.

    Args:
        owner: The class that received the arguments, for messages.
        recompute: A policy of `smdp.torch.checkpoint_activations()`, or None.
        offload: A place of `smdp.torch.offload_activations()`, or None.
        precision: "bf16" or "fp16", or None for the dtype of the model.

    Raises:
        ValueError: An argument is not valid.

    Attributes:
        recompute: The policy, or None.
        offload: The place, or None.
        dtype: The dtype of parameters and gradients, or None.
        given: The arguments.
    """

    def __init__(self, owner: str, recompute: Any, offload: str | None, precision: str | None) -> None:
        self._owner = owner
        self.recompute: Policy | None = None if recompute is None else read_policy(recompute, "recompute")
        if offload is not None:
            target_of(offload)
        if precision is not None and precision not in _DTYPES:
            raise ValueError(
                f"[smdp] {owner}: precision is {precision!r}; allowed: None, 'bf16', 'fp16'. For other kinds,"
                " use mixed precision of the training arguments or of the Accelerator."
            )
        self.offload = offload
        self.dtype = None if precision is None else _DTYPES[precision]
        self.given = {"recompute": recompute, "offload": offload, "precision": precision}

    @property
    def master_dtype(self) -> torch.dtype | None:
        """The dtype of the masters that a sharded optimizer keeps, or None."""
        return None if self.dtype is None else torch.float32

    def check(self, mixed_precision: str, is_checkpointed: bool) -> None:
        """Checks the options against those of Accelerate.

        Args:
            mixed_precision: Accelerate's own kind of mixed precision, "no" for none.
            is_checkpointed: Whether the model recomputes its activations itself.

        Raises:
            ValueError: Both ask for the same.
        """
        if self.dtype is not None and mixed_precision != "no":
            raise ValueError(
                f"[smdp] {self._owner}: precision={self.given['precision']!r} keeps parameters in 16 bits,"
                f" and mixed_precision={mixed_precision!r} converts them in each forward. Use one of them."
            )
        if self.recompute is not None and is_checkpointed:
            raise ValueError(
                f"[smdp] {self._owner}: recompute={self.given['recompute']!r} and activation checkpoints of"
                " the training arguments recompute the same activations twice. Use one of them."
            )

    def change(self, model: nn.Module, *, is_sharded: bool = False) -> None:
        """Applies the options to a model that is not wrapped yet.

        Args:
            model: The model.
            is_sharded: Whether its parameters will be sharded, which keeps the dtype of the shards.
        """
        if not is_sharded:
            self.lower(model)
        if self.recompute is not None:
            checkpoint_activations(model, self.recompute)
        if self.offload is not None and not is_offloaded(model):
            offload_activations(model, self.offload)

    def lower(self, model: nn.Module) -> None:
        """Converts the parameters of a model to 16 bits if `precision` asks for it."""
        if self.dtype is not None:
            lower_precision(model, self.dtype)

    def prepare(
        self,
        accelerator: Accelerator,
        prepare: Callable[..., Optimizer],
        optimizer: Optimizer,
        models: PreparedModels,
        sharded: ShardedOptimizers | None,
        **options: Any,
    ) -> Optimizer:
        """Prepares an optimizer for training, and shards it or keeps its masters if the options ask for it.

        Args:
            accelerator: Its backward and clipping go through an optimizer with masters from now on.
            prepare: The Accelerator's `prepare_optimizer`.
            optimizer: The optimizer.
            models: Those that were prepared before.
            sharded: Distributes states, or None.
            **options: For `prepare`.
        """
        is_plain = sharded is None and self.dtype is None
        if is_plain or getattr(optimizer, "_is_accelerate_prepared", False):
            return prepare(optimizer, **options)
        model = models.model_of(optimizer, "precision" if sharded is None else "shard_optimizer")
        changed = optimizer if sharded is None else sharded.shard(optimizer)
        return self.prepare_changed(accelerator, prepare, changed, model)

    def prepare_changed(
        self,
        accelerator: Accelerator,
        prepare: Callable[..., Optimizer],
        optimizer: Optimizer,
        model: nn.Module,
    ) -> Optimizer:
        """Prepares an optimizer, with masters if the parameters have 16 bits.

        Args:
            accelerator: See prepare().
            prepare: See prepare().
            optimizer: The optimizer, which may be sharded.
            model: The wrapped model.

        Raises:
            ValueError: The Accelerator has an optimizer with masters already.
        """
        # The state is where the parameters are, and Accelerate could move only a whole one.
        if self.dtype is None:
            return prepare(optimizer, device_placement=False)
        others = [one.optimizer for one in accelerator._optimizers]
        if any(isinstance(one, MixedPrecision) for one in others):
            raise ValueError(
                f"[smdp] {self._owner}: precision={self.given['precision']!r} supports one optimizer,"
                " whose loss scale and clipping the Accelerator uses. Use one with several parameter groups."
            )
        scale = DynamicLossScale(_FIRST_SCALE) if self.dtype is torch.float16 else 1.0
        mixed = MixedPrecision(optimizer, model, self.dtype, loss_scale=scale)
        prepared: Any = prepare(mixed, device_placement=False)

        def clip(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
            norm = mixed.clip_master_grads(max_norm, norm_type)
            return torch.tensor(math.inf if norm < 0 else norm)

        def clip_value(parameters: Any, clip_value: float) -> None:
            nn.utils.clip_grad_value_(parameters, clip_value * mixed.loss_scale)

        prepared.step = types.MethodType(_step_and_report, prepared)
        accelerator.clip_grad_norm_ = clip
        accelerator.clip_grad_value_ = clip_value
        if not isinstance(model, PipelinedModule):
            accelerator.backward = _Backward(accelerator, mixed)
        return prepared


def _step_and_report(prepared: Any, closure: Callable[[], Any] | None = None) -> None:
    """Makes a step of Accelerate's wrapper, and lets schedules know if it was skipped."""
    type(prepared).step(prepared, closure)
    if prepared.gradient_state.sync_gradients:
        prepared._is_overflow = prepared.optimizer.overflow


class _Backward:
    """The Accelerator's backward of a scaled loss."""

    def __init__(self, accelerator: Accelerator, mixed: MixedPrecision) -> None:
        self._backward = type(accelerator).backward
        self._accelerator = weakref.ref(accelerator)
        self._mixed = mixed

    def __call__(self, loss: Tensor, **options: Any) -> None:
        self._backward(self._accelerator(), self._mixed.scale(loss), **options)
