"""Ranges in torch's profiler, `smdp::all_reduce` and the like."""

from __future__ import annotations

import contextlib
from typing import Any

from torch.autograd import _profiler_enabled
from torch.profiler import record_function


def ranged(name: str) -> contextlib.AbstractContextManager[Any]:
    """Give a range `smdp::name`; nothing while no profiler runs: it costs as much as a small call."""
    return record_function(f"smdp::{name}") if _profiler_enabled() else contextlib.nullcontext()
