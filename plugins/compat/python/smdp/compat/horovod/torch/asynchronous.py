"""Operations that return at once, in place or with a new tensor.

All ranks must start them in the same order. If the program passes names, they are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdp.compat.horovod.torch.names import under_its_name
from smdp.compat.horovod.torch.operands import check_rows, check_tensor
from smdp.compat.horovod.torch.world import ProcessSet, check_included, global_process_set

Average = "average"
Sum = "sum"
Min = "min"
Max = "max"
Product = "product"
Adasum = "adasum"
_OPS = {
    Average: dist.ReduceOp.SUM,
    Sum: dist.ReduceOp.SUM,
    Min: dist.ReduceOp.MIN,
    Max: dist.ReduceOp.MAX,
    Product: dist.ReduceOp.PRODUCT,
}


@dataclass(eq=False)
class Handle:
    """An operation in progress. synchronize() returns its result, any number of times."""

    works: list[Any]
    finish: Callable[[], Any]
    results: list[Any] = field(default_factory=list)

    def __call__(self) -> Any:
        """Returns the result, because Horovod's handle of a sparse tensor is a function."""
        return synchronize(self)


def synchronize(handle: Handle) -> Any:
    """Waits for an operation and returns its result.

    Raises:
        TypeError: The argument is not a handle.
    """
    _check_handle("synchronize", handle)
    for work in handle.works:
        work.wait()
    if not handle.results:
        handle.results.append(handle.finish())
    return handle.results[0]


def poll(handle: Handle) -> bool:
    """Returns whether the operation is done, which means that synchronize() would not wait.

    Raises:
        TypeError: The argument is not a handle.
    """
    _check_handle("poll", handle)
    return all(work.is_completed() for work in handle.works)


def _check_handle(call: str, handle: Any) -> None:
    if not isinstance(handle, Handle):
        raise TypeError(
            f"[smdp] {call} got a {type(handle).__name__} instead of a handle; pass the handle that a call"
            " ending in _async or _async_ returns."
        )


def operation(op: Any, average: bool | None) -> str:
    """Returns the operation that `op` or the older `average` names; the default is Average.

    Raises:
        ValueError: Both are given, or the operation is not supported.
    """
    if op is not None and average is not None:
        raise ValueError("[smdp] pass op or average, not both.")
    if op is None:
        op = Sum if average is False else Average
    if op not in _OPS:
        raise ValueError(
            f"[smdp] op is {op!r}; allowed: Average, Sum, Min, Max, Product. Adasum is not supported."
        )
    return str(op)


def _is_whole(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() and not tensor.is_complex()


def _scale(factor: float, tensor: Tensor) -> float:
    """Returns a factor in the type by which the tensor can be multiplied."""
    if not _is_whole(tensor):
        return factor
    if not float(factor).is_integer():
        raise ValueError(
            f"[smdp] the factor of {tensor.dtype} is {factor}; allowed for integers: whole numbers. Pass"
            " tensor.float(), or scale the result."
        )
    return int(factor)


def _reduction(kind: str, tensor: Tensor) -> Any:
    """Returns torch's operation. AVG divides before it adds, so a mean of floats cannot overflow."""
    return dist.ReduceOp.AVG if kind == Average and not _is_whole(tensor) else _OPS[kind]


def _summed(kind: str, tensor: Tensor) -> Tensor:
    """Returns the tensor to reduce: narrow integers are widened, because their sum may overflow in a mean.

    Raises:
        ValueError: `kind` is Average and the dtype is bool.
    """
    if kind == Average and tensor.dtype == torch.bool:
        raise ValueError(
            "[smdp] op of a torch.bool tensor is Average; allowed: Sum, Min, Max, Product. For a mean, pass"
            " tensor.float()."
        )
    is_narrow = kind == Average and tensor.dtype in (torch.uint8, torch.int8, torch.int16)
    return tensor.to(torch.int32) if is_narrow else tensor


def _finish_mean(kind: str, tensor: Tensor, size: int) -> None:
    if kind == Average and _is_whole(tensor):
        tensor.div_(size, rounding_mode="floor")


@under_its_name
def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts an allreduce of several tensors in place; arguments as in allreduce_async_."""
    kind = operation(op, average)
    check_included(process_set)
    tensors = list(tensors)
    for tensor in tensors:
        check_tensor("allreduce", tensor)
    before = [_scale(prescale_factor, tensor) for tensor in tensors]
    after = [_scale(postscale_factor, tensor) for tensor in tensors]
    with torch.no_grad():
        sums = [_summed(kind, tensor) for tensor in tensors]
        for total, factor in zip(sums, before, strict=True):
            if factor != 1:
                total.mul_(factor)
        works = [
            dist.all_reduce(total, _reduction(kind, total), group=process_set.group, async_op=True)
            for total in sums
        ]

    def finish() -> Any:
        with torch.no_grad():
            for tensor, total, factor in zip(tensors, sums, after, strict=True):
                _finish_mean(kind, total, process_set.size())
                if factor != 1:
                    total.mul_(factor)
                if total is not tensor:
                    tensor.copy_(total)
        return tensors

    return Handle(works, finish)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts an allreduce in place; arguments as in allreduce."""
    group = grouped_allreduce_async_(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set
    )
    return Handle(group.works, lambda: group.finish()[0])


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Starts an allreduce into a new tensor; arguments as in allreduce_async_."""
    check_tensor("allreduce", tensor)
    return allreduce_async_(tensor.detach().clone(), *args, **kwargs)


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Starts an allreduce of several tensors into new ones; arguments as in allreduce_async_."""
    tensors = list(tensors)
    for tensor in tensors:
        check_tensor("allreduce", tensor)
    return grouped_allreduce_async_([tensor.detach().clone() for tensor in tensors], *args, **kwargs)


@under_its_name
def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts an allgather along the first dimension, whose size may differ between ranks."""
    check_rows("allgather", tensor)
    check_included(process_set)
    size = process_set.size()
    rows = torch.empty(size, dtype=torch.int64, device="cpu")
    own = torch.tensor([tensor.shape[0]], device="cpu")
    dist.all_gather(list(rows.split(1)), own, group=process_set.group)
    whole = tensor.new_empty((int(rows.sum()), *tensor.shape[1:]))
    parts = list(whole.split(rows.tolist()))
    work = dist.all_gather(parts, tensor.detach().contiguous(), group=process_set.group, async_op=True)
    return Handle([work], lambda: whole)


def grouped_allgather_async(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts an allgather of several tensors."""
    return _together([allgather_async(tensor, name, process_set) for tensor in tensors])


@under_its_name
def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Starts a broadcast in place. `root_rank` is a rank of the world."""
    check_tensor("broadcast", tensor)
    check_included(process_set)
    with torch.no_grad():
        work = dist.broadcast(tensor, root_rank, group=process_set.group, async_op=True)
    return Handle([work], lambda: tensor)


def broadcast_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Starts a broadcast into a new tensor; arguments as in broadcast_async_."""
    check_tensor("broadcast", tensor)
    return broadcast_async_(tensor.detach().clone(), *args, **kwargs)


@under_its_name
def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts an alltoall. The tensor holds the rows for rank 0, then those for rank 1, and so on."""
    check_rows("alltoall", tensor)
    check_included(process_set)
    size = process_set.size()
    if splits is None and tensor.shape[0] % size != 0:
        raise ValueError(
            f"[smdp] alltoall got {tensor.shape[0]} rows, which do not divide evenly among {size} ranks;"
            " pass splits."
        )
    sent = (
        [tensor.shape[0] // size] * size if splits is None else torch.as_tensor(splits, device="cpu").tolist()
    )
    if len(sent) != size or sum(sent) != tensor.shape[0]:
        raise ValueError(
            f"[smdp] alltoall: splits are {sent}; expected {size} numbers that add up to"
            f" {tensor.shape[0]} rows."
        )
    received = torch.empty(size, dtype=torch.int64, device="cpu")
    dist.all_to_all_single(received, torch.tensor(sent, device="cpu"), group=process_set.group)
    out = tensor.new_empty((int(received.sum()), *tensor.shape[1:]))
    work = dist.all_to_all_single(
        out,
        tensor.detach().contiguous(),
        received.tolist(),
        sent,
        group=process_set.group,
        async_op=True,
    )
    return Handle([work], lambda: out if splits is None else (out, received.to(torch.int32)))


@under_its_name
def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Any = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Starts a reducescatter along the first dimension. The first ranks get one row more if it is uneven."""
    check_rows("reducescatter", tensor)
    kind = operation(op, None)
    check_included(process_set)
    size, rank = process_set.size(), process_set.rank()
    each, more = divmod(tensor.shape[0], size)
    rows = [each + (one < more) for one in range(size)]
    before, after = _scale(prescale_factor, tensor), _scale(postscale_factor, tensor)
    source = _summed(kind, tensor.detach())
    source = source * before if before != 1 else source
    out = source.new_empty((rows[rank], *tensor.shape[1:]))
    work = dist.reduce_scatter(
        out,
        list(source.contiguous().split(rows)),
        _reduction(kind, source),
        group=process_set.group,
        async_op=True,
    )

    def finish() -> Tensor:
        _finish_mean(kind, out, size)
        return (out.mul_(after) if after != 1 else out).to(tensor.dtype)

    return Handle([work], finish)


def grouped_reducescatter_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Starts a reducescatter of several tensors; arguments as in reducescatter_async."""
    return _together([reducescatter_async(tensor, *args, **kwargs) for tensor in tensors])


def _together(handles: list[Handle]) -> Handle:
    works = [work for handle in handles for work in handle.works]
    return Handle(works, lambda: [handle.finish() for handle in handles])
