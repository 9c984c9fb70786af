"""What `DistributedDataParallel` takes: arguments, modules and groups that smdp's reducer works with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_group
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from smdp._shown import shown
from smdp.torch.process_group.process_group import ProcessGroupSmdp

_SIGNATURE = inspect.signature(TorchDistributedDataParallel.__init__)


def bind_arguments(*args: Any, **kwargs: Any) -> inspect.BoundArguments:
    """Returns the arguments under the names that torch's class has for them.

    Raises:
        TypeError: They do not fit torch's class.
    """
    try:
        return _SIGNATURE.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"[smdp] wrong arguments for DistributedDataParallel: {error}") from None


def refuse_what_only_torch_has(arguments: Mapping[str, Any]) -> None:
    """Refuses what torch's reducer does, which modules on the CPU do not have.

    Raises:
        ValueError: An argument asks for it.
    """
    cures = {
        "mixed_precision": "torch has it on GPUs only, too: use torch.autocast.",
        "delay_all_reduce_named_params": "Use torch.nn.parallel.DistributedDataParallel for it.",
    }
    for name, cure in cures.items():
        if arguments.get(name) is not None:
            raise ValueError(
                f"[smdp] DistributedDataParallel: {name} is given for a module on the CPU, where smdp's own"
                f" reducer has nothing of the kind. {cure}"
            )
    caps = arguments.get("bucket_cap_mb_list")
    if caps is not None:
        raise ValueError(
            f"[smdp] DistributedDataParallel: bucket_cap_mb_list is {shown(caps)} for a module on the CPU,"
            " where smdp's fusion buffers follow the cost model and have one upper bound. Give that as"
            " bucket_cap_mb."
        )


def refuse_what_takes_gradients(module: nn.Module, is_averaged_by_torch: Callable[[nn.Module], bool]) -> None:
    """Refuses gradients that a part of the module already averages, or that an optimizer uses in backward.

    Args:
        module: The module.
        is_averaged_by_torch: Whether a part of it is in torch's own DistributedDataParallel.

    Raises:
        ValueError: There are such gradients.
    """
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    averaged = {
        id(parameter): name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
    for name, part in module.named_modules():
        if is_averaged_by_torch(part) and any(id(parameter) in averaged for parameter in part.parameters()):
            raise ValueError(
                f"[smdp] DistributedDataParallel: {name or 'the module'} is in torch's DistributedData"
                "Parallel, whose reducer would average the same gradients at the same time. Use one class for"
                " both, or wrap the outermost module only."
            )
    for parameter in module.parameters():
        if id(parameter) in averaged and hasattr(parameter, "_in_backward_optimizers"):
            raise ValueError(
                f"[smdp] DistributedDataParallel: parameter '{averaged[id(parameter)]}' has an optimizer that"
                " steps in backward (_apply_optimizer_in_backward), with the gradient of one rank. Step after"
                " backward."
            )


def checked_group(arguments: Mapping[str, Any]) -> ProcessGroupSmdp:
    """Returns the group that averages the gradients.

    Raises:
        ValueError: It is not one of smdp.
        TypeError: The device mesh is not one.
    """
    group = arguments.get("process_group")
    if group is None:
        mesh = arguments.get("device_mesh")
        if mesh is not None and not hasattr(mesh, "get_group"):
            raise TypeError(f"[smdp] DistributedDataParallel got {shown(mesh)} as device_mesh.")
        group = _get_default_group() if mesh is None else mesh.get_group(mesh_dim=0)
    if not isinstance(group, ProcessGroupSmdp):
        given = dist.get_backend(group) if isinstance(group, dist.ProcessGroup) else group
        raise ValueError(
            f"smdp.torch.DistributedDataParallel needs a group of the backend 'smdp', got "
            f"{given!r}: pass process_group=dist.new_group(backend='smdp')"
        )
    return group
