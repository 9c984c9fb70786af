"""Checks of what a `ShardedOptimizer` accepts."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.data_parallel.averaged_gradients import AveragedGradients, AveragingModel
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.offload.pool_file import PoolFile
from smdp.torch.offload.stores import disk_pool
from smdp.torch.optimizers.optimizer_link import OptimizerLink
from smdp.torch.sharding.asked_sharding import SCOPES
from smdp.torch.sharding.master_parameters import MasterParameters
from smdp.torch.sharding.one_dtype import check_dtypes
from smdp.torch.sharding.shard_layout import ShardLayout, is_dense
from smdp.torch.sharding.whole_tensors import Ways, ways_to_shard


class Accepted(NamedTuple):
    """What an accepted optimizer and its model were found to be.

    Attributes:
        gradients: The gradients that the model averages.
        given: The parameters of the optimizer.
        ways: How its groups can be sharded.
        pool: The file for the state; None: it stays in memory.
    """

    gradients: AveragedGradients
    given: list[Parameter]
    ways: Ways
    pool: PoolFile | None = None


def check_model(model: object) -> None:
    """Checks that a model averages gradients with other ranks.

    Raises:
        ValueError: It does not.
    """
    if type(model).__name__ == "ShardedDataParallel":
        raise ValueError(
            "[smdp] ShardedOptimizer: the model is a ShardedDataParallel, whose optimizer has this rank's"
            " shard of the state already. Use the optimizer without ShardedOptimizer."
        )
    if not callable(getattr(model, "averaged_gradients", None)):
        raise ValueError(
            f"[smdp] ShardedOptimizer got a {type(model).__name__}, but needs a model wrapped in"
            " smdp.torch.DistributedDataParallel, or the result of smdp.torch.pipeline()."
        )


def accept(
    optimizer: Optimizer,
    model: AveragingModel,
    scope: str,
    master_dtype: torch.dtype | None,
    offload: object = None,
) -> Accepted:
    """Checks what a script has passed.

    Raises:
        ValueError: An argument is not supported.
    """
    _check_arguments(optimizer, scope, master_dtype)
    given = [one for group in optimizer.param_groups for one in group["params"]]
    gradients = model.averaged_gradients("ShardedOptimizer", given)
    _check_gradients(gradients)
    if not given and gradients.called is not None:  # other stages of a pipeline may have some
        raise ValueError("[smdp] ShardedOptimizer: the optimizer has no parameters.")
    check_known(given, gradients, names_of(model))
    ways = ways_to_shard(optimizer, optimizer.param_groups)
    check_dtypes(optimizer, optimizer.param_groups, MasterParameters(master_dtype).dtype_of)
    return Accepted(gradients, given, ways, None if offload is None else disk_pool(offload))


def names_of(model: AveragingModel) -> dict[int, str]:
    """Returns the names of a model's parameters by their ids."""
    return {id(one): name for name, one in model.module.named_parameters()}


def check_known(
    parameters: Iterable[Parameter], gradients: AveragedGradients, names: Mapping[int, str]
) -> None:
    """Checks that the model averages the gradients of these parameters.

    Args:
        parameters: The parameters of an optimizer.
        gradients: The gradients that the model averages.
        names: The names of all parameters of the model by their ids.

    Raises:
        ValueError: It does not average one of them.
    """
    averaged = {id(one) for one in gradients.parameters}
    for one in parameters:
        if id(one) not in averaged:
            name = names.get(id(one))
            shown = f"of shape {tuple(one.shape)}" if name is None else repr(name)
            raise ValueError(
                f"[smdp] ShardedOptimizer: the optimizer has parameter {shown}, whose gradient the model"
                f" does not average. {gradients.which}"
            )


def _check_arguments(optimizer: object, scope: str, master_dtype: object) -> None:
    if scope not in SCOPES:
        raise ValueError(f"[smdp] ShardedOptimizer: scope is {scope!r}; allowed: {', '.join(SCOPES)}.")
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


def _check_gradients(gradients: AveragedGradients) -> None:
    """Checks that what the model averages can be sharded."""
    if gradients.shards is not None or any(each.deferral is not None for each in gradients.hooks):
        raise ValueError(
            "[smdp] this model is already in a StepInForward or a ShardedOptimizer. Create only one for a"
            " model."
        )
    for each in gradients.hooks:
        _check_reducer(each)
    for registered, parameter in zip(gradients.registered, gradients.parameters, strict=True):
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


def ways_to_add(
    optimizer: Optimizer,
    group: Mapping[str, Any],
    gradients: AveragedGradients,
    names: Mapping[int, str],
    masters: MasterParameters,
    layout: ShardLayout,
) -> Ways:
    """Checks a group that will be added to an optimizer, and returns how it is sharded.

    Raises:
        ValueError: The model does not average a parameter, or one is cut that must be updated as a whole.
    """
    check_known(group["params"], gradients, names)
    ways = ways_to_shard(optimizer, [group])
    check_dtypes(optimizer, [group], masters.dtype_of)
    index_of = {id(one): index for index, one in enumerate(gradients.parameters)}
    for one in ways.whole:
        if index_of[id(one)] not in layout.whole:
            raise ValueError(
                f"[smdp] add_param_group(): {type(optimizer).__name__} updates parameter"
                f" {names[id(one)]!r} as a whole with these options, but it is already cut. Pass"
                " this group when you create the optimizer, with lr=0 until it is trained."
            )
    return ways
