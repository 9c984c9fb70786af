"""Warns if the ranks that share a model are on several hosts, with what this costs."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch
from torch import nn

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.tensor_parallelism.actions.linears import Rows
from smdp.torch.tensor_parallelism.collectives import sum_
from smdp.torch.tensor_parallelism.layers.linear import outputs_of
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

_log = logging.getLogger("smdp.torch")
_PROBE = 1 << 20


def warn_across_hosts(model: nn.Module, plan: TensorParallelPlan, axis: TensorAxis) -> None:
    """Logs a warning on rank 0 if ranks that share a model are on several hosts. Collective.

    Args:
        model: The model, before it is divided.
        plan: How it will be divided.
        axis: The ranks.
    """
    hosts = on_every_rank(lambda: len(axis.group.core.hosts))
    if max(hosts) == 1:
        return
    took = _probe(axis)
    seconds = max(on_every_rank(lambda: took))
    if axis.mesh.rank == 0:
        rate = 2 * (axis.size - 1) / axis.size * _PROBE / seconds
        # A layer's sum in forward, and that of the gradient of the layers before it in backward.
        sent = 2 * 2 * (axis.size - 1) / axis.size * _row_bytes(model, plan)
        _log.warning(
            "[smdp] tensor_parallel: the %d ranks of a model are on %d hosts. A rank sends %.0f KB per token"
            " and step, here at %.0f MB/s: %.2f ms per token. Use a degree that divides the ranks of a"
            " host, and pipeline stages or replicas between hosts.",
            axis.size,
            max(hosts),
            sent / 1e3,
            rate / 1e6,
            1e3 * sent / rate,
        )


def _probe(axis: TensorAxis) -> float:
    """Returns the seconds of a sum over the ranks; the first one prepares the connections."""
    values = torch.zeros(_PROBE // 4)
    seconds = 0.0
    for _ in range(3):
        begin = time.perf_counter()
        sum_(values, axis.number)
        seconds = time.perf_counter() - begin
    return seconds


def _row_bytes(model: Any, plan: TensorParallelPlan) -> int:
    rows = [model.get_submodule(name) for name, action in plan.actions.items() if isinstance(action, Rows)]
    return sum(outputs_of(row) * row.weight.element_size() for row in rows)
