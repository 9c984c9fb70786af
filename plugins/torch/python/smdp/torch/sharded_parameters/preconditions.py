"""Checks of what a `ShardedDataParallel` accepts."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from smdp._shown import shown
from smdp.torch.mesh.cuts import mesh_of_slices
from smdp.torch.process_group.process_group import ProcessGroupSmdp

# By class name, so that a wrapper's package need not be imported to recognize it.
_WRAPPERS = {
    "ShardedDataParallel": "it is wrapped already. Wrap a model once.",
    "PipelinedModule": "each rank already keeps only its own stages. Use pipeline() with ShardedOptimizer to"
    " shard the optimizer's state over replicas.",
    "DistributedDataParallel": "pass model.module, because gradients are averaged in any case.",
    "DataParallel": "pass model.module, because gradients are averaged in any case.",
    "FullyShardedDataParallel": "pass the model before it was wrapped.",
    "FSDPModule": "pass the model before fully_shard(), which this class calls itself.",
    "OptimizedModule": "pass model._orig_mod, and compile the blocks inside the model if you need to.",
    "StepInForward": "updates in the next forward need whole parameters. Leave StepInForward out.",
}
_sharded: weakref.WeakSet[nn.Module] = weakref.WeakSet()
_ONLY_DDP = {
    "compression": "shards travel uncompressed. Use smdp.torch.DistributedDataParallel with ShardedOptimizer"
    " to compress gradients",
    "bucket_cap_mb": "gradients are sent unit by unit. Pass units instead",
    "find_unused_parameters": "pass unused_parameters=True if ranks may use different parameters",
    "static_graph": "it is not needed",
    "gradient_as_bucket_view": "gradients are always parts of buffers",
    "device_mesh": "pass process_group",
}


def check_arguments(
    model: object, others: Mapping[str, Any], limits: Mapping[str, Any], backward_passes: Any
) -> None:
    """Checks the arguments that do not need the other ranks.

    Args:
        model: The model.
        others: Keyword arguments that are not supported.
        limits: Numbers of elements by the names of their arguments.
        backward_passes: The number of backwards before a step.

    Raises:
        TypeError: The model is not a module, or an argument is unknown.
        ValueError: An argument is not valid, or the model cannot be sharded.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(
            f"[smdp] ShardedDataParallel got a {type(model).__name__} in place of a torch.nn.Module."
        )
    for name in others:
        if name in _ONLY_DDP:
            raise ValueError(f"[smdp] ShardedDataParallel: {name} is not supported: {_ONLY_DDP[name]}.")
        raise TypeError(f"[smdp] ShardedDataParallel got an unexpected argument {name!r}.")
    for name, limit in limits.items():
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit >= 0:
            raise ValueError(
                f"[smdp] ShardedDataParallel: {name} = {shown(limit)} is not valid; allowed: a number of"
                " elements of at least 0"
            )
    if isinstance(backward_passes, bool) or not isinstance(backward_passes, int) or backward_passes < 1:
        raise ValueError(
            f"[smdp] ShardedDataParallel: backward_passes = {shown(backward_passes)} is not valid; allowed:"
            " an integer of at least 1"
        )
    _check_model(model)


def remember_shards(model: nn.Module) -> None:
    """Notes that the parameters of a model, and of its modules, are in the shards of a wrapper."""
    _sharded.update(model.modules())


def check_not_sharded(model: nn.Module) -> None:
    """Checks that no parameters of a model are in the shards of an earlier wrapper.

    Raises:
        ValueError: They are, with the name of the first module.
    """
    found = next((name for name, one in model.named_modules() if one in _sharded), None)
    if found is not None:
        what = f"module {found!r}" if found else "the model"
        raise ValueError(
            f"[smdp] {what} is sharded by an earlier Trainer, Accelerator or ShardedDataParallel. Go on with"
            " that one, or load its checkpoint into a new model."
        )


def check_clip(clip: Any) -> None:
    """Checks the largest norm of the gradients.

    Raises:
        ValueError: It is neither None nor a number above 0.
    """
    if clip is not None and (isinstance(clip, bool) or not isinstance(clip, (int, float)) or not clip > 0):
        raise ValueError(
            f"[smdp] ShardedDataParallel: clip = {shown(clip)} is not valid; allowed: a number above 0, or"
            " None"
        )


def check_dtype(dtype: Any, allowed: Collection[torch.dtype]) -> None:
    """Checks the type in which units compute.

    Raises:
        ValueError: It is neither None nor allowed.
    """
    if dtype is not None and dtype not in allowed:
        raise ValueError(
            f"[smdp] ShardedDataParallel: dtype = {shown(dtype)} is not supported; allowed: torch.bfloat16,"
            " or None. float16 needs a loss scale that all ranks agree on, and bfloat16 does not."
        )


def averaging_group(model: nn.Module, group: dist.ProcessGroup | None) -> ProcessGroupSmdp:
    """Returns the ranks that train the model, or this slice of it.

    Raises:
        ValueError: torch.distributed is not initialized, the group does not use the backend "smdp", or it is
            not that of the ranks with the same slices.
    """
    if not dist.is_initialized():
        raise ValueError(
            '[smdp] ShardedDataParallel needs torch.distributed. Call dist.init_process_group("smdp") first.'
        )
    mesh = mesh_of_slices(model.parameters())
    if mesh is not None:
        if group is not None and tuple(dist.get_process_group_ranks(group)) != mesh.ranks("rdp"):
            raise ValueError(
                "[smdp] ShardedDataParallel: the model is divided by tensor_parallel(), so the ranks with"
                f" the same slices share its shards: {', '.join(map(str, mesh.ranks('rdp')))}. Leave"
                " process_group out."
            )
        return mesh.step_group("rdp")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, ProcessGroupSmdp):
        given = dist.get_backend(chosen) if isinstance(chosen, dist.ProcessGroup) else chosen
        raise ValueError(
            f"[smdp] ShardedDataParallel needs a group of the backend 'smdp', but got {given!r}. Pass"
            " process_group=dist.new_group(backend='smdp')."
        )
    return chosen


def _check_model(model: nn.Module) -> None:
    # A pipelined module hides itself from the names of its modules.
    for name, module in (("", model), *model.named_modules()):
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                if kind.__name__ == "FSDPModule":
                    check_not_sharded(model)
                what = f"module {name!r}" if name else "the model"
                raise ValueError(
                    f"[smdp] ShardedDataParallel: {what} is a {kind.__name__}: {_WRAPPERS[kind.__name__]}"
                )
    if (lowered := getattr(model, "_smdp_lowered", None)) is not None:
        raise ValueError(
            f"[smdp] ShardedDataParallel: lower_precision() has converted this model to {lowered}, so"
            " shards would not keep the 32 bits of a master. Leave out lower_precision() and"
            " MixedPrecision, and pass dtype=torch.bfloat16: the shards then are float32 masters, which"
            " the optimizer updates."
        )
    devices = set()
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(
                f"[smdp] ShardedDataParallel: parameter {name!r} has no shape yet. Call the model once first."
            )
        if type(parameter).__name__ == "DTensor" or isinstance(parameter, torch.distributed.tensor.DTensor):
            raise ValueError(
                f"[smdp] ShardedDataParallel: parameter {name!r} is a DTensor, as of parallelize_module()."
                " Divide the model with smdp.torch.tensor_parallel() instead."
            )
        if parameter.dim() == 0:
            raise ValueError(
                f"[smdp] ShardedDataParallel: parameter {name!r} is a single number without a dimension. Make"
                " it a tensor of shape [1]."
            )
        if not parameter.is_meta:
            devices.add(parameter.device)
    if len(devices) > 1:
        raise ValueError(
            "[smdp] ShardedDataParallel: the parameters are on several devices:"
            f" {', '.join(sorted(map(str, devices)))}. Move the model to one."
        )
    _check_no_optimizer(model)


def _check_no_optimizer(model: nn.Module) -> None:
    """Looks for an optimizer that would go on to update the whole parameters, which the model loses."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    # A second look leaves out optimizers that nothing uses any more.
    for look in range(2):
        found = next(
            (
                (optimizer, names[id(one)])
                for optimizer in gc.get_objects()
                if issubclass(type(optimizer), Optimizer)
                for group in optimizer.__dict__.get("param_groups", ())
                for one in group["params"]
                if id(one) in names
            ),
            None,
        )
        if found is None:
            return
        if look == 0:
            optimizer_type, name = type(found[0]).__name__, found[1]
            found = None
            gc.collect()
    raise ValueError(
        f"[smdp] ShardedDataParallel: parameter {name!r} already has an optimizer ({optimizer_type}), but is"
        " replaced by this rank's shard. Create the optimizer afterwards, from the parameters of the wrapped"
        " model."
    )
