"""Sums of sparse tensors: every rank gets all rows, and adds those that stand at the same place."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdp.compat.horovod.torch.asynchronous import (
    Average,
    Handle,
    Sum,
    allgather_async,
    operation,
    synchronize,
)
from smdp.compat.horovod.torch.world import ProcessSet, global_process_set


def sparse_allreduce_async(
    tensor: Tensor,
    name: str | None = None,
    op: Any = Average,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """Start an allreduce of a sparse tensor; synchronize() gives a coalesced one.

    Args:
        tensor: In the COO layout, of the same shape on all ranks; each has rows of its own.
        name: Not needed.
        op: Average or Sum.
        process_set: The ranks.

    Raises:
        ValueError: The tensor is not sparse, or another operation is wanted.
    """
    kind = operation(op, None)
    if kind not in (Average, Sum):
        raise ValueError(f"[smdp] sparse_allreduce_async: op is {op!r}; allowed: Average, Sum.")
    if tensor.layout is not torch.sparse_coo:
        raise ValueError(
            f"[smdp] sparse_allreduce_async: the layout is {tensor.layout}, needed: torch.sparse_coo; use"
            " allreduce_async."
        )
    with torch.no_grad():
        own = tensor.detach().coalesce()
        places = allgather_async(own.indices().t().contiguous(), None, process_set)
        values = allgather_async(own.values(), None, process_set)

    def finish() -> Tensor:
        whole = torch.sparse_coo_tensor(
            synchronize(places).t(),
            synchronize(values),
            own.shape,
            device=own.device,
            check_invariants=False,
        ).coalesce()
        return whole / process_set.size() if kind == Average else whole

    return Handle([*places.works, *values.works], finish)
