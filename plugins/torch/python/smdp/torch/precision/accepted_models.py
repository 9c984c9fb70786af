"""Checks of what a `MixedPrecision` accepts."""

from __future__ import annotations

import weakref

import torch
from torch import nn
from torch.optim import Optimizer

from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.precision.lowered_model import check_dtype, check_parameters, is_wrapped, lower_precision
from smdp.torch.sharding.master_parameters import LOW
from smdp.torch.sharding.sharded_optimizer import ShardedOptimizer

_taken: weakref.WeakSet[object] = weakref.WeakSet()  # optimizers in a MixedPrecision


def check_arguments(
    optimizer: object, model: object, dtype: object, masters: object
) -> ShardedOptimizer | None:
    """Checks the kinds of the arguments.

    Returns:
        The optimizer, if it is sharded.

    Raises:
        ValueError: One is not supported.
    """
    check_dtype("MixedPrecision", dtype)
    if masters != "fp32":
        raise ValueError(f"[smdp] MixedPrecision: masters is {masters!r}; allowed: 'fp32'.")
    if not isinstance(model, nn.Module):
        raise ValueError(f"[smdp] MixedPrecision got a {type(model).__name__}; expected a torch.nn.Module.")
    if isinstance(optimizer, Optimizer) and optimizer in _taken:
        raise ValueError(
            f"[smdp] MixedPrecision: this {type(optimizer).__name__} is already in a MixedPrecision, which"
            " has the masters. Create only one for an optimizer."
        )
    if isinstance(optimizer, ShardedOptimizer):
        return optimizer
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, OptimizerLink):
        raise ValueError(
            f"[smdp] MixedPrecision got a {type(optimizer).__name__} in place of an optimizer. Pass a torch"
            " optimizer or a ShardedOptimizer that is not wrapped yet; other wrappers go around the"
            " MixedPrecision."
        )
    return None


def lowered(optimizer: Optimizer, model: nn.Module, dtype: torch.dtype) -> None:
    """Converts a model to 16 bits, or checks that it was converted before it was wrapped.

    Raises:
        ValueError: It cannot be converted any more, or the optimizer has other parameters.
    """
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    own = {id(parameter) for parameter in model.parameters()}
    for parameter in given:
        if id(parameter) not in own:
            raise ValueError(
                f"[smdp] MixedPrecision: the optimizer has a parameter of shape {tuple(parameter.shape)} that"
                " is not in the model. Create the optimizer from the parameters() of this model."
            )
    check_parameters("MixedPrecision", model, dtype)
    is_late = is_wrapped(model) or isinstance(optimizer, ShardedOptimizer)
    if is_late and given and not any(parameter.dtype is dtype for parameter in given):
        raise ValueError(
            f"[smdp] MixedPrecision: the model is already wrapped or split, and none of its parameters has"
            f" {dtype}. Call smdp.torch.lower_precision(model, {dtype}) before the model is wrapped or split."
        )
    is_low = any(parameter.dtype in LOW for parameter in given)
    if isinstance(optimizer, ShardedOptimizer) and is_low and not optimizer.keeps_masters:
        raise ValueError(
            "[smdp] MixedPrecision: this ShardedOptimizer updates 16-bit parameters themselves. Create it"
            " with master_dtype=torch.float32, so that each rank keeps the masters of its shard."
        )
    if not is_late:
        lower_precision(model, dtype)
    _taken.add(optimizer)
