"""Autograd functions of the operations that return a new tensor.

The gradients follow Horovod's rules, because scripts are tuned to them. Three of them are not the
derivatives: for allgather and broadcast they are means over the ranks, where the derivatives are sums; for
reducescatter the gradient is the derivative times the number of ranks.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdp.compat.horovod.torch.asynchronous import (
    Average,
    Sum,
    allgather_async,
    allreduce_async,
    alltoall_async,
    broadcast_async,
    reducescatter_async,
    synchronize,
)
from smdp.compat.horovod.torch.world import ProcessSet


class Allreduce(torch.autograd.Function):
    """Allreduce, whose gradient is the allreduce of the gradients."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, op: str, pre: float, post: float, members: ProcessSet) -> Tensor:
        ctx.options = op, pre, post, members
        out: Tensor = synchronize(allreduce_async(tensor, None, None, op, pre, post, members))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        op, pre, post, members = ctx.options
        if op not in (Average, Sum):
            raise RuntimeError(f"[smdp] allreduce with {op} has no gradient; use Average or Sum.")
        return synchronize(allreduce_async(gradient, None, None, op, pre, post, members)), *[None] * 4


class Allgather(torch.autograd.Function):
    """Allgather, whose gradient is this rank's rows of the mean over all ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, members: ProcessSet) -> Tensor:
        out: Tensor = synchronize(allgather_async(tensor, None, members))
        ctx.rows, ctx.members = tensor.shape[0], members
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mean = synchronize(allreduce_async(gradient, op=Average, process_set=ctx.members))
        rows = synchronize(allgather_async(torch.tensor([ctx.rows], device="cpu"), None, ctx.members))
        begin = int(rows[: ctx.members.rank()].sum())
        return mean[begin : begin + ctx.rows], None


class Broadcast(torch.autograd.Function):
    """Broadcast, whose gradient is the mean over all ranks on the root, and zero on the others."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root: int, members: ProcessSet) -> Tensor:
        ctx.root, ctx.members = root, members
        out: Tensor = synchronize(broadcast_async(tensor, root, None, members))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        mean = synchronize(allreduce_async(gradient, op=Average, process_set=ctx.members))
        return mean if dist.get_rank() == ctx.root else torch.zeros_like(mean), None, None


class Alltoall(torch.autograd.Function):
    """Alltoall, whose gradient is the alltoall in the opposite direction."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, splits: Any, members: ProcessSet) -> Any:
        even = [tensor.shape[0] // members.size()] * members.size() if splits is None else splits
        if splits is None and tensor.shape[0] % members.size():
            even = None  # alltoall_async raises the error
        out, received = synchronize(alltoall_async(tensor, even, None, members))
        ctx.received, ctx.members = received, members
        ctx.mark_non_differentiable(received)
        return out, received

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Any) -> Any:
        back, _ = synchronize(alltoall_async(gradient, ctx.received, None, ctx.members))
        return back, None, None


class Reducescatter(torch.autograd.Function):
    """Reducescatter, whose gradient is the allgather of the gradients; for Sum, times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, op: str, pre: float, post: float, members: ProcessSet) -> Tensor:
        ctx.options = op, pre, post, members
        out: Tensor = synchronize(reducescatter_async(tensor, None, op, members, pre, post))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        op, pre, post, members = ctx.options
        if op not in (Average, Sum):
            raise RuntimeError(f"[smdp] reducescatter with {op} has no gradient; use Average or Sum.")
        scale = pre * post * (members.size() if op == Sum else 1)
        return synchronize(allgather_async(gradient * scale, None, members)), *[None] * 4
