"""`smdistributed.dataparallel.torch.distributed`: SMDDP's old API on top of torch.distributed."""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch.distributed as dist
from torch import Tensor

import smdp.compat.sagemaker.dataparallel.torch.torch_smddp  # noqa: F401 - registers "smddp"
from smdp.environments.torch_variables import set_torch_variables


class group:
    """Holds WORLD, which stands for all ranks."""

    WORLD = None


class ReduceOp:
    """Operations."""

    SUM = dist.ReduceOp.SUM
    AVERAGE = AVG = dist.ReduceOp.AVG
    MIN = dist.ReduceOp.MIN
    MAX = dist.ReduceOp.MAX
    PRODUCT = dist.ReduceOp.PRODUCT


def is_available() -> bool:
    """Returns whether a launcher started this process as a rank of a job."""
    return dist.is_available() and set_torch_variables()


def is_initialized() -> bool:
    """Returns whether init_process_group() was called."""
    return bool(dist.is_initialized())


def init_process_group(*args: Any, **kwargs: Any) -> None:
    """Initializes the world. All arguments are ignored, and a second call does nothing."""
    if dist.is_initialized():
        return
    warnings.warn(
        "smdistributed.dataparallel.torch.dist is deprecated in the SageMaker distributed data parallel"
        ' library v1.4.0+. torch.distributed.init_process_group("smdp") replaces it here.',
        DeprecationWarning,
        stacklevel=2,
    )
    if set_torch_variables():
        dist.init_process_group("smddp")
    else:
        dist.init_process_group("smddp", store=dist.HashStore(), rank=0, world_size=1)


def get_world_size(group: Any = group.WORLD) -> int:
    """Returns the number of processes."""
    return int(dist.get_world_size(group))


def get_rank(group: Any = group.WORLD) -> int:
    """Returns the rank among all processes."""
    return int(dist.get_rank(group))


def get_local_rank() -> int:
    """Returns the rank among the processes of this host."""
    set_torch_variables()
    return int(os.environ.get("LOCAL_RANK", "0"))


def all_reduce(
    tensor: Tensor, op: Any = ReduceOp.SUM, group: Any = group.WORLD, async_op: bool = False
) -> Any:
    """Behaves like torch.distributed.all_reduce(); `op=None` means SUM."""
    return dist.all_reduce(tensor, ReduceOp.SUM if op is None else op, group, async_op)


def broadcast(tensor: Tensor, src: int = 0, group: Any = group.WORLD, async_op: bool = False) -> Any:
    """Behaves like torch.distributed.broadcast()."""
    return dist.broadcast(tensor, src, group, async_op)


def all_gather(
    tensor_list: list[Tensor], tensor: Tensor, group: Any = group.WORLD, async_op: bool = False
) -> Any:
    """Behaves like torch.distributed.all_gather()."""
    return dist.all_gather(tensor_list, tensor, group, async_op)


def all_to_all_single(
    output_t: Tensor,
    input_t: Tensor,
    output_split_sizes: list[int] | None = None,
    input_split_sizes: list[int] | None = None,
    group: Any = group.WORLD,
    async_op: bool = False,
) -> Any:
    """Behaves like torch.distributed.all_to_all_single()."""
    return dist.all_to_all_single(
        output_t, input_t, output_split_sizes, input_split_sizes, group=group, async_op=async_op
    )


def reduce(tensor: Tensor, dst: int = 0, *args: Any, **kwargs: Any) -> Any:
    """Behaves like torch.distributed.reduce(), with rank 0 as the default destination."""
    return dist.reduce(tensor, dst, *args, **kwargs)


def barrier(group: Any = group.WORLD, async_op: bool = False, **kwargs: Any) -> Any:
    """Behaves like torch.distributed.barrier()."""
    return dist.barrier(group, async_op, **kwargs)


def __getattr__(name: str) -> Any:
    """Returns the name from torch.distributed, for newer scripts that call more than the old API had."""
    if not name.startswith("__") and hasattr(dist, name):
        return getattr(dist, name)
    raise AttributeError(f"[smdp] smdistributed.dataparallel.torch.distributed has no name {name!r}.")
