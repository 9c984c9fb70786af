"""allreduce, allgather, broadcast, alltoall and reducescatter, in place, grouped and asynchronous.

Those that give a new tensor have gradients. All ranks must make the same calls in the same order; names are
not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdp.compat.horovod.torch.compression import Compression
from smdp.compat.horovod.torch.world import ProcessSet, global_process_set

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
    """An operation in flight; synchronize() gives its result, as often as it is asked."""

    works: list[Any]
    finish: Callable[[], Any]
    results: list[Any] = field(default_factory=list)


def synchronize(handle: Handle) -> Any:
    """Wait for an operation and give its result."""
    for work in handle.works:
        work.wait()
    if not handle.results:
        handle.results.append(handle.finish())
    return handle.results[0]


def poll(handle: Handle) -> bool:
    """Whether synchronize() would not wait."""
    return all(work.is_completed() for work in handle.works)


def operation(op: Any, average: bool | None) -> str:
    """Give the operation that two arguments name, by default Average.

    Raises:
        ValueError: Both are given, or it is not supported.
    """
    if op is not None and average is not None:
        raise ValueError("[smdp] give op or average, not both.")
    if op is None:
        op = Sum if average is False else Average
    if op not in _OPS:
        raise ValueError(
            f"[smdp] op is {op!r}; allowed: Average, Sum, Min, Max, Product. Adasum is not there."
        )
    return str(op)


def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce in place."""
    return grouped_allreduce_async_(
        [tensor], average, name, op, prescale_factor, postscale_factor, process_set, _is_one=True
    )


def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: Any = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    *,
    _is_one: bool = False,
) -> Handle:
    """Start one for several tensors, in place."""
    kind = operation(op, average)
    with torch.no_grad():
        for tensor in tensors:
            if prescale_factor != 1.0:
                tensor.mul_(prescale_factor)
        works = [
            dist.all_reduce(tensor, _OPS[kind], group=process_set.group, async_op=True) for tensor in tensors
        ]

    def finish() -> Any:
        with torch.no_grad():
            for tensor in tensors:
                if kind == Average:
                    rounding = None if tensor.is_floating_point() or tensor.is_complex() else "floor"
                    tensor.div_(process_set.size(), rounding_mode=rounding)
                if postscale_factor != 1.0:
                    tensor.mul_(postscale_factor)
        return tensors[0] if _is_one else list(tensors)

    return Handle(works, finish)


def allreduce_(*args: Any, **kwargs: Any) -> Any:
    """Allreduce in place; arguments as in allreduce_async_."""
    return synchronize(allreduce_async_(*args, **kwargs))


def grouped_allreduce_(*args: Any, **kwargs: Any) -> Any:
    """Allreduce of several tensors in place; arguments as in grouped_allreduce_async_."""
    return synchronize(grouped_allreduce_async_(*args, **kwargs))


def allreduce_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start an allreduce into a new tensor; arguments as in allreduce_async_."""
    return allreduce_async_(tensor.detach().clone(), *args, **kwargs)


def grouped_allreduce_async(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> Handle:
    """Start one for several tensors; arguments as in allreduce_async_."""
    return grouped_allreduce_async_([tensor.detach().clone() for tensor in tensors], *args, **kwargs)


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
    """Give the tensor reduced over all ranks.

    Args:
        tensor: The same shape and dtype on all ranks.
        average: Horovod's old spelling of op.
        name: Not used.
        compression: Compression.fp16 or bf16 sends a float32 tensor in 16 bits.
        op: Average, Sum, Min, Max or Product; default Average.
        prescale_factor: Multiplies the input.
        postscale_factor: Multiplies the result.
        process_set: The ranks.
    """
    kind = operation(op, average)
    reduced: Tensor = _Allreduce.apply(
        _compressed(tensor, compression), kind, prescale_factor, postscale_factor, process_set
    )
    return reduced.to(tensor.dtype)


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
    """Give each tensor reduced over all ranks; arguments as in allreduce."""
    kind = operation(op, average)
    return [
        allreduce(tensor, None, name, compression, kind, prescale_factor, postscale_factor, process_set)
        for tensor in tensors
    ]


def allgather_async(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start an allgather along the first dimension, which may differ between ranks."""
    if tensor.dim() == 0:
        raise ValueError("[smdp] allgather joins along the first dimension, and this tensor is a scalar.")
    size = process_set.size()
    rows = torch.empty(size, dtype=torch.int64)
    dist.all_gather(list(rows.split(1)), torch.tensor([tensor.shape[0]]), group=process_set.group)
    whole = tensor.new_empty((int(rows.sum()), *tensor.shape[1:]))
    parts = list(whole.split(rows.tolist()))
    work = dist.all_gather(parts, tensor.detach().contiguous(), group=process_set.group, async_op=True)
    return Handle([work], lambda: whole)


def allgather(
    tensor: Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Give all ranks' tensors, joined along the first dimension."""
    gathered: Tensor = _Allgather.apply(tensor, process_set)
    return gathered


def broadcast_async_(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """Start a broadcast in place; root_rank counts in the world."""
    with torch.no_grad():
        work = dist.broadcast(tensor, root_rank, group=process_set.group, async_op=True)
    return Handle([work], lambda: tensor)


def broadcast_(*args: Any, **kwargs: Any) -> Any:
    """Broadcast in place; arguments as in broadcast_async_."""
    return synchronize(broadcast_async_(*args, **kwargs))


def broadcast_async(tensor: Tensor, *args: Any, **kwargs: Any) -> Handle:
    """Start a broadcast into a new tensor; arguments as in broadcast_async_."""
    return broadcast_async_(tensor.detach().clone(), *args, **kwargs)


def broadcast(
    tensor: Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Tensor:
    """Give the root's tensor."""
    received: Tensor = _Broadcast.apply(tensor, root_rank, process_set)
    return received


def alltoall_async(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an alltoall: rows for rank 0, then for rank 1, and so on."""
    size = process_set.size()
    if splits is None and tensor.shape[0] % size != 0:
        raise ValueError(
            f"[smdp] alltoall of {tensor.shape[0]} rows between {size} ranks: they do not divide; give"
            " splits."
        )
    sent = [tensor.shape[0] // size] * size if splits is None else [int(n) for n in torch.as_tensor(splits)]
    if len(sent) != size or sum(sent) != tensor.shape[0]:
        raise ValueError(
            f"[smdp] alltoall: splits are {sent}; needed: {size} that add up to {tensor.shape[0]} rows."
        )
    received = torch.empty(size, dtype=torch.int64)
    dist.all_to_all_single(received, torch.tensor(sent), group=process_set.group)
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


def alltoall(
    tensor: Tensor,
    splits: Any = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Give the rows from all ranks; with splits also how many came from each."""
    out, received = _Alltoall.apply(tensor, splits, process_set)
    return out if splits is None else (out, received)


def reducescatter_async(
    tensor: Tensor,
    name: str | None = None,
    op: Any = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """Start a reducescatter along the first dimension; the first ranks take a row more."""
    kind = operation(op, None)
    size, rank = process_set.size(), process_set.rank()
    each, more = divmod(tensor.shape[0], size)
    rows = [each + (one < more) for one in range(size)]
    source = tensor.detach() * prescale_factor if prescale_factor != 1.0 else tensor.detach()
    out = tensor.new_empty((rows[rank], *tensor.shape[1:]))
    work = dist.reduce_scatter(
        out, list(source.contiguous().split(rows)), _OPS[kind], group=process_set.group, async_op=True
    )

    def finish() -> Tensor:
        scale = postscale_factor / (size if kind == Average else 1)
        return out.mul_(scale) if scale != 1.0 else out

    return Handle([work], finish)


def reducescatter(
    tensor: Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: Any = None,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Give this rank's rows of the sum or mean."""
    small = _compressed(tensor, compression)
    out: Tensor = _Reducescatter.apply(
        small, operation(op, None), prescale_factor, postscale_factor, process_set
    )
    return out.to(tensor.dtype)


def grouped_allgather(
    tensors: Sequence[Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Tensor]:
    """Allgather of several tensors."""
    return [allgather(tensor, name, process_set) for tensor in tensors]


def grouped_reducescatter(tensors: Sequence[Tensor], *args: Any, **kwargs: Any) -> list[Tensor]:
    """Reducescatter of several tensors; arguments as in reducescatter."""
    return [reducescatter(tensor, *args, **kwargs) for tensor in tensors]


def _compressed(tensor: Tensor, compression: Any) -> Tensor:
    if tensor.dtype not in (torch.float32, torch.float64):
        return tensor
    return tensor.to({"fp16": torch.float16, "bf16": torch.bfloat16}.get(compression, tensor.dtype))


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it."""
    dist.barrier(group=process_set.group)


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, op: str, pre: float, post: float, members: ProcessSet) -> Tensor:
        ctx.options = op, pre, post, members
        out: Tensor = synchronize(allreduce_async(tensor, None, None, op, pre, post, members))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        op, pre, post, members = ctx.options
        if op not in (Average, Sum):
            raise RuntimeError(f"[smdp] allreduce with {op} has no gradient; Average and Sum have.")
        return synchronize(allreduce_async(gradient, None, None, op, pre, post, members)), *[None] * 4


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, members: ProcessSet) -> Tensor:
        ctx.rows, ctx.members = tensor.shape[0], members
        out: Tensor = synchronize(allgather_async(tensor, None, members))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = synchronize(allreduce_async(gradient, op=Sum, process_set=ctx.members))
        rows = synchronize(allgather_async(torch.tensor([ctx.rows]), None, ctx.members))
        begin = int(rows[: ctx.members.rank()].sum())
        return total[begin : begin + ctx.rows], None


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, members: ProcessSet) -> Tensor:
        ctx.root, ctx.members = root, members
        out: Tensor = synchronize(broadcast_async(tensor, root, None, members))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        total = synchronize(allreduce_async(gradient, op=Sum, process_set=ctx.members))
        return total if dist.get_rank() == ctx.root else torch.zeros_like(total), None, None


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, members: ProcessSet) -> Any:
        even = [tensor.shape[0] // members.size()] * members.size() if splits is None else splits
        if splits is None and tensor.shape[0] % members.size():
            even = None  # alltoall_async says what is wrong
        out, received = synchronize(alltoall_async(tensor, even, None, members))
        ctx.received, ctx.members = received, members
        ctx.mark_non_differentiable(received)
        return out, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        back, _ = synchronize(alltoall_async(gradient, ctx.received, None, ctx.members))
        return back, None, None


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, op: str, pre: float, post: float, members: ProcessSet) -> Tensor:
        ctx.options = op, pre, post, members
        out: Tensor = synchronize(reducescatter_async(tensor, None, op, members, pre, post))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        op, pre, post, members = ctx.options
        if op not in (Average, Sum):
            raise RuntimeError(f"[smdp] reducescatter with {op} has no gradient; Average and Sum have.")
        scale = pre * post / (members.size() if op == Average else 1)
        return synchronize(allgather_async(gradient * scale, None, members)), *[None] * 4
