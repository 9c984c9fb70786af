"""Sums of sparse tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from smdp import _core
from smdp.compat.horovod.torch.asynchronous import Average, Handle, Sum, operation
from smdp.compat.horovod.torch.world import ProcessSet, check_included, global_process_set
from smdp.torch.plugin_support import dtype_code, reduction

_OPS = {Average: dist.ReduceOp.AVG, Sum: dist.ReduceOp.SUM}


class RowSums:
    """Sums or means, over a group, of gradients of which each rank has only some rows.

    Args:
        group: The core's group.
        kind: Average or Sum.
    """

    def __init__(self, group: _core.Group, kind: str) -> None:
        self._group = group
        self._op, self._factor = reduction(_OPS[kind])

    def all_reduce_sparse(self, index: int, sum: _core.SparseSum, /) -> Any:
        """Starts the sum of one gradient."""
        return self._group.all_reduce_sparse(sum, self._op, self._factor, -1.0, True)

    def or_over_ranks(self, flags: int, count: int, /) -> None:
        """Sets each of `count` bytes at an address to 1 if any rank has it."""
        dtype, (op, factor) = dtype_code(torch.uint8), reduction(dist.ReduceOp.MAX)
        self._group.all_reduce(flags, flags, [count], dtype, op, factor, -1.0, False)

    def abort(self, reason: str, /) -> None:
        """Makes all operations of the group fail, on all ranks."""
        self._group.abort(reason)


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Starts an allreduce of a sparse tensor. synchronize() returns a coalesced tensor.

    Args:
        tensor: Tensor in COO layout. Its shape is the same on all ranks; its rows may differ.
        name: Not used.
        op: Average or Sum.
        process_set: The ranks that take part; all by default.

    Raises:
        ValueError: The tensor is not sparse, or `op` is not supported.
    """
    kind = operation(op, None)
    if kind not in _OPS:
        raise ValueError(f"[smdp] sparse_allreduce_async: op is {op!r}; allowed: Average, Sum.")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(
            f"[smdp] sparse_allreduce_async: the layout is {tensor.layout}, expected torch.sparse_coo; use"
            " allreduce_async."
        )
    check_included(process_set)
    with torch.no_grad():
        total = tensor.detach()  # the sum replaces its rows
        work = dist.all_reduce(total, _OPS[kind], group=process_set.group, async_op=True)
    return Handle([work], lambda: total)
