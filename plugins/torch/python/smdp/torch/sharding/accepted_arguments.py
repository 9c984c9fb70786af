"""Checks of what a `ShardedOptimizer` accepts."""

from __future__ import annotations

import gc

import torch
from torch.optim import Optimizer

from smdp.torch.data_parallel.averaged_gradients import AveragedGradients
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.sharding.asked_scope import SCOPES
from smdp.torch.sharding.shard_layout import is_dense


def check_arguments(optimizer: object, model: object, scope: str, master_dtype: object) -> None:
    """Checks what a script has passed.

    Raises:
        ValueError: An argument is not supported.
    """
    if scope not in SCOPES:
        raise ValueError(f"[smdp] ShardedOptimizer: scope is {scope!r}; allowed: {', '.join(SCOPES)}.")
    if not callable(getattr(model, "averaged_gradients", None)):
        raise ValueError(
            f"[smdp] ShardedOptimizer got a {type(model).__name__}, but needs a model wrapped in"
            " smdp.torch.DistributedDataParallel, or the result of smdp.torch.pipeline()."
        )
    if master_dtype not in (None, torch.float32):
        raise ValueError(
            f"[smdp] ShardedOptimizer: master_dtype is {master_dtype!r}; allowed: torch.float32, or None to"
            " update the parameters themselves."
        )
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, OptimizerLink):
        raise ValueError(
            f"[smdp] ShardedOptimizer got a {type(optimizer).__name__} in place of an optimizer. Pass a torch"
            " optimizer that is not sharded or wrapped yet; wrappers go around the ShardedOptimizer."
        )


def check_gradients(hooks: AveragedGradients) -> None:
    """Checks that what the model averages can be sharded.

    Raises:
        ValueError: Something else takes the gradients, or a parameter has gaps in its memory.
    """
    if hooks.shards is not None or (isinstance(hooks, GradientHooks) and hooks.deferral is not None):
        raise ValueError(
            "[smdp] this model is already in a StepInForward or a ShardedOptimizer. Create only one for a"
            " model."
        )
    if isinstance(hooks, GradientHooks):
        _check_reducer(hooks)
    for registered, parameter in zip(hooks.registered, hooks.parameters, strict=True):
        if not is_dense(parameter):
            raise ValueError(
                f"[smdp] ShardedOptimizer: parameter {registered.name!r} of shape {tuple(parameter.shape)}"
                f" with strides {parameter.stride()} has gaps in its memory. Make it from a contiguous"
                " tensor."
            )


def _check_reducer(hooks: GradientHooks) -> None:
    """Checks what only data parallel models may have."""
    if hooks.shared.indices:
        gc.collect()  # a replaced wrapper is in a reference cycle with its hooks
    for index, registered in enumerate(hooks.registered):
        if hooks.shared.others(index):
            raise ValueError(
                f"[smdp] ShardedOptimizer: parameter {registered.name!r} also belongs to another wrapped"
                " model, which could not average its gradient. Use one wrapper for a parameter."
            )
