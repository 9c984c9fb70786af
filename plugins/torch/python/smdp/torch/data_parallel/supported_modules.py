"""Checks of the arguments, modules and groups that `DistributedDataParallel` accepts."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import _get_default_group
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from smdp._shown import shown
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.process_group.process_group import ProcessGroupSmdp

_SIGNATURE = inspect.signature(TorchDistributedDataParallel.__init__)


def bind_arguments(*args: Any, **kwargs: Any) -> inspect.BoundArguments:
    """Returns the arguments bound to the parameter names of torch's class.

    Raises:
        TypeError: The arguments do not fit torch's class.
    """
    try:
        return _SIGNATURE.bind_partial(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"[smdp] wrong arguments for DistributedDataParallel: {error}") from None


def refuse_what_only_torch_has(arguments: Mapping[str, Any]) -> None:
    """Refuses arguments that only torch's reducer supports, for a module on the CPU.

    Raises:
        ValueError: Such an argument is given.
    """
    cures = {
        "mixed_precision": "torch's DDP supports it on GPUs only. Use torch.autocast.",
        "delay_all_reduce_named_params": "Use torch.nn.parallel.DistributedDataParallel for it.",
    }
    for name, cure in cures.items():
        if arguments.get(name) is not None:
            raise ValueError(
                f"[smdp] DistributedDataParallel: {name} is not supported for a module on the CPU, which uses"
                f" smdp's reducer. {cure}"
            )
    caps = arguments.get("bucket_cap_mb_list")
    if caps is not None:
        raise ValueError(
            f"[smdp] DistributedDataParallel: bucket_cap_mb_list={shown(caps)} is not supported for a module"
            " on the CPU, where the cost model sets the sizes of the fusion buffers below one upper bound."
            " Pass that bound as bucket_cap_mb."
        )


def refuse_what_takes_gradients(module: nn.Module, is_averaged_by_torch: Callable[[nn.Module], bool]) -> None:
    """Refuses a module with gradients that are already averaged, or that an optimizer uses in backward.

    Args:
        module: The module.
        is_averaged_by_torch: Returns whether a part of it is wrapped in torch's DistributedDataParallel.

    Raises:
        ValueError: The module has such gradients.
    """
    ignored = set(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    averaged = {
        id(parameter): name
        for name, parameter in module.named_parameters()
        if parameter.requires_grad and name not in ignored
    }
    for name, part in module.named_modules():
        if type(part).__name__ == "ShardedDataParallel":
            raise ValueError(
                f"[smdp] DistributedDataParallel: {name or 'the module'} is a ShardedDataParallel, which"
                " averages its gradients itself. Leave DistributedDataParallel out."
            )
        if is_averaged_by_torch(part) and any(id(parameter) in averaged for parameter in part.parameters()):
            raise ValueError(
                f"[smdp] DistributedDataParallel: {name or 'the module'} is already wrapped in torch's"
                " DistributedDataParallel, which would average the same gradients at the same time. Use the"
                " same class for both, or wrap only the outermost module."
            )
    for parameter in module.parameters():
        if id(parameter) in averaged and hasattr(parameter, "_in_backward_optimizers"):
            raise ValueError(
                f"[smdp] DistributedDataParallel: parameter '{averaged[id(parameter)]}' has an optimizer that"
                " steps in backward (_apply_optimizer_in_backward) and would use the gradient of this rank"
                " alone. Step the optimizer after backward."
            )


def choose_replicas(arguments: dict[str, Any], mesh: ParallelMesh) -> None:
    """Makes the replicas of a divided model the group that averages its gradients.

    Ranks along the tensor axis hold different slices, so their gradients must never be averaged.

    Args:
        arguments: The arguments by name, in which `process_group` is set.
        mesh: The mesh over whose tensor axis the module is divided.

    Raises:
        ValueError: Other ranks than the replicas were passed as `process_group` or `device_mesh`.
    """
    group, given = arguments.get("process_group"), arguments.pop("device_mesh", None)
    if group is None and given is not None:
        group = given.get_group(mesh_dim=0)
    replicas = mesh.ranks("rdp")
    if group is not None and tuple(dist.get_process_group_ranks(group)) != replicas:
        raise ValueError(
            "[smdp] DistributedDataParallel: the module is divided by tensor_parallel(), and the ranks with"
            f" the slices of this rank are {_list(replicas)}, but process_group has ranks"
            f" {_list(dist.get_process_group_ranks(group))}. Leave process_group out."
        )
    arguments["process_group"] = mesh.step_group("rdp") if group is None else group


def _list(ranks: Iterable[int]) -> str:
    return ", ".join(map(str, ranks))


def checked_group(arguments: Mapping[str, Any]) -> ProcessGroupSmdp:
    """Returns the group that averages the gradients.

    Raises:
        ValueError: The group does not use the backend "smdp".
        TypeError: `device_mesh` is not a device mesh.
    """
    group = arguments.get("process_group")
    if group is None:
        mesh = arguments.get("device_mesh")
        if mesh is not None and not hasattr(mesh, "get_group"):
            raise TypeError(
                f"[smdp] DistributedDataParallel got {shown(mesh)} as device_mesh; it must be a DeviceMesh."
            )
        group = _get_default_group() if mesh is None else mesh.get_group(mesh_dim=0)
    if not isinstance(group, ProcessGroupSmdp):
        given = dist.get_backend(group) if isinstance(group, dist.ProcessGroup) else group
        raise ValueError(
            f"[smdp] smdp.torch.DistributedDataParallel needs a group of the backend 'smdp', but got"
            f" {given!r}. Pass process_group=dist.new_group(backend='smdp')."
        )
    return group
