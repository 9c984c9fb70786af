"""What torch's `fully_shard` keeps to itself: the parameters of a unit that are gathered together.

torch has no public way to keep parameters whole, to average them over other ranks, or to reduce without
waiting. This is the only module that uses its internals; they are those of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo as FSDPMeshInfo
from torch.distributed.fsdp._fully_shard._fsdp_common import ShardPlacementResult as ShardPlacementResult
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec

Group: TypeAlias = Any
"""Parameters of a unit that are gathered and reduced together, torch's FSDPParamGroup."""


def groups_of(modules: Iterable[nn.Module]) -> list[Group]:
    """Returns the groups of modules that have been passed to `fully_shard`."""
    return [group for module in modules for group in module._get_fsdp_state()._fsdp_param_groups]


def ranks_with_shards(mesh: DeviceMesh) -> FSDPMeshInfo:
    """Returns torch's description of a mesh over which parameters are sharded."""
    return FSDPMeshInfo(mesh, shard_mesh_dim=0)


def placed(dim: int, ranks: FSDPMeshInfo) -> ShardPlacementResult:
    """Returns the placement of a parameter that is sharded along a dimension."""
    return ShardPlacementResult(Shard(dim), ranks)


def gradients(group: Group) -> Iterator[Tensor]:
    """Yields this rank's parts of the gradients of a group's parameters, as far as there are any."""
    for held in group.fsdp_params:
        if held.sharded_param.grad is not None:
            yield held.sharded_param.grad._local_tensor


def needs_reduced_at_once(group: Group, output: Tensor) -> bool:
    """Returns whether torch reads a reduced gradient right after it has asked for it."""
    if group._orig_dtype != output.dtype or output.dtype not in (torch.float32, torch.bfloat16):
        return True  # the result is converted or scaled
    return any(
        held.sharded_param.grad is not None
        or getattr(held.sharded_param, "_post_accumulate_grad_hooks", None)
        for held in group.fsdp_params
    )


def communicate_with(
    group: Group, all_gather: Any, reduce_scatter: Any, reduced: Callable[[Tensor], None]
) -> None:
    """Makes a group use other collectives, and call a function with each result of the second one."""
    group._all_gather_comm = all_gather
    group._reduce_scatter_comm = reduce_scatter
    group._all_reduce_hook = reduced


def describe(group: Group, mesh: DeviceMesh, *, is_whole: bool) -> None:
    """Makes all parameters of a group DTensors of the same mesh, so that operations can mix them.

    torch describes each group by the process group that it uses.

    Args:
        group: The group.
        mesh: The ranks with the shards of one copy.
        is_whole: Whether each rank holds these parameters whole.
    """
    for held in group.fsdp_params:
        parameter: DTensor = held.sharded_param
        placements: tuple[Placement, ...] = (Replicate(),) if is_whole else parameter._spec.placements
        spec = DTensorSpec(mesh, placements, tensor_meta=parameter._spec.tensor_meta)
        parameter._spec = spec
        held._sharding_spec = spec
