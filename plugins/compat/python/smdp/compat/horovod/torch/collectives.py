"""allreduce, allgather, broadcast, alltoall and reducescatter, in place and grouped.

Operations that return a new tensor have gradients. All ranks must make the same calls in the same order. If
the program passes names, they are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from smdp.compat.horovod.torch._gradients import Allgather, Allreduce, Alltoall, Broadcast, Reducescatter
from smdp.compat.horovod.torch.asynchronous import (
    allreduce_async_,
    broadcast_async_,
    grouped_allreduce_async_,
    operation,
    synchronize,
)
from smdp.compat.horovod.torch.compression import Compression, compressor
from smdp.compat.horovod.torch.names import under_its_name
from smdp.compat.horovod.torch.operands import check_rows, check_tensor
from smdp.compat.horovod.torch.world import ProcessSet, check_included, global_process_set, size


def allreduce_(*args: Any, **kwargs: Any) -> Any:
    """Reduces a tensor in place over all ranks; arguments as in allreduce_async_."""
    return synchronize(allreduce_async_(*args, **kwargs))


def grouped_allreduce_(*args: Any, **kwargs: Any) -> Any:
    """Reduces several tensors in place over all ranks; arguments as in grouped_allreduce_async_."""
    return synchronize(grouped_allreduce_async_(*args, **kwargs))


@under_its_name
def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Tensor:
    """Returns the tensor reduced over all ranks.

    Args:
        tensor: The input; its shape and dtype must be the same on all ranks.
        average: Older form of `op`: True means Average, False means Sum.
        name: Optional name of the call, which must be the same on all ranks.
        compression: Compression.fp16 or Compression.bf16 sends a float32 tensor in 16 bits. A script's own
            compressor has compress() and decompress().
        op: Average (the default), Sum, Min, Max or Product.
        prescale_factor: Factor that multiplies the input.
        postscale_factor: Factor that multiplies the result.
        process_set: The ranks that take part; all by default.
    """
    check_tensor("allreduce", tensor)
    kind = operation(op, average)
    wire = compressor(compression)
    small, ctx = wire.compress(tensor)
    reduced = Allreduce.apply(small, kind, prescale_factor, postscale_factor, process_set)
    whole: Tensor = wire.decompress(reduced, ctx)
    return whole


def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Tensor]:
    """Returns each tensor reduced over all ranks; arguments as in allreduce."""
    kind = operation(op, average)
    return [
        allreduce(tensor, None, name, compression, kind, prescale_factor, postscale_factor, process_set)
        for tensor in tensors
    ]


@under_its_name
def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the tensors of all ranks concatenated along the first dimension."""
    gathered: Tensor = Allgather.apply(tensor, process_set)
    return gathered


def broadcast_(*args: Any, **kwargs: Any) -> Any:
    """Sets the tensor to the root's; arguments as in broadcast_async_."""
    return synchronize(broadcast_async_(*args, **kwargs))


@under_its_name
def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Returns the root's tensor."""
    received: Tensor = Broadcast.apply(tensor, root_rank, process_set)
    return received


@under_its_name
def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the rows from all ranks; with `splits`, also how many came from each rank."""
    check_rows("alltoall", tensor)
    out, received = Alltoall.apply(tensor, splits, process_set)
    return out if splits is None else (out, received)


@under_its_name
def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Returns this rank's rows of the sum or mean over all ranks."""
    check_rows("reducescatter", tensor)
    wire = compressor(compression)
    small, ctx = wire.compress(tensor)
    out = Reducescatter.apply(small, operation(op, None), prescale_factor, postscale_factor, process_set)
    whole: Tensor = wire.decompress(out, ctx)
    return whole


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Gathers several tensors from all ranks; arguments as in allgather."""
    return [allgather(tensor, name, process_set) for tensor in tensors]


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reduces and scatters several tensors; arguments as in reducescatter."""
    return [reducescatter(tensor, *args, **kwargs) for tensor in tensors]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Waits until all ranks of the set have called it."""
    check_included(process_set)
    dist.barrier(group=process_set.group)


def join(device: int = -1) -> int:
    """Waits until all ranks have called it, and returns the last rank.

    All ranks must have run the same number of batches. If another rank has more, it waits for this rank,
    and both fail with a timeout.

    Args:
        device: Not used.
    """
    ranks = size()
    dist.barrier()
    return ranks - 1
