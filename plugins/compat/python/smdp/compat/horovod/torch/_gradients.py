"""The operations that give a new tensor, as autograd sees them.

Their gradients follow Horovod's rules, which scripts are tuned to. Three of them are not the derivatives:
those of allgather and broadcast are means over the ranks, where the derivatives are sums; that of
reducescatter is larger than the derivative by the number of ranks.
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
    """Its gradient is the allreduce of the gradients."""

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


class Allgather(torch.autograd.Function):
    """Its gradient is this rank's rows of the mean over all ranks."""

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
    """Its gradient is the mean over all ranks on the root, and zeros elsewhere."""

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
    """Its gradient is the way back."""

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


class Reducescatter(torch.autograd.Function):
    """Its gradient is what all ranks have, joined; for Sum, times the number of ranks."""

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
        scale = pre * post * (members.size() if op == Sum else 1)
        return synchronize(allgather_async(gradient * scale, None, members)), *[None] * 4
