"""`smdistributed.dataparallel`."""

from __future__ import annotations

import itertools
import os

__version__ = "2.5.0"

_tasks = itertools.count()


def start_profiler(path: str, append_rank: bool = False) -> None:
    """Debugger's hook: smdp's traces are switched on before the start, by SMDP_TRACE=directory."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def stop_profiler() -> None:
    """Debugger's hook."""


def _get_id_for_herring_task() -> int:
    return next(_tasks)
