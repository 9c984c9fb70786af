"""Ranges in torch's profiler: every call shows as `smdp::all_reduce` and the like."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from torch.autograd import _profiler_enabled
from torch.profiler import record_function

# Methods of torch's ProcessGroup, and what the ranges are called.
RANGES = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "_allgather_base": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}


def ranged(name: str) -> contextlib.AbstractContextManager[Any]:
    """Give a range `smdp::name`; nothing while no profiler runs: it costs as much as a small call."""
    return record_function(f"smdp::{name}") if _profiler_enabled() else contextlib.nullcontext()


def add_ranges(group_class: type) -> None:
    """Wrap the methods of a ProcessGroup class."""
    for method, name in RANGES.items():
        if hasattr(group_class, method):
            setattr(group_class, method, _in_range(getattr(group_class, method), f"smdp::{name}"))


def _in_range(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not _profiler_enabled():
            return method(*args, **kwargs)
        with record_function(name):
            return method(*args, **kwargs)

    return call
