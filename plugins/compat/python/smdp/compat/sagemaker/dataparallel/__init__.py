"""`smdistributed.dataparallel`."""

from __future__ import annotations

import itertools
import os

__version__ = "2.5.0"

_tasks = itertools.count()


def start_profiler(path: str, append_rank: bool = False) -> None:
    """Does nothing; SageMaker Debugger calls it. To trace smdp, set SMDP_TRACE=FOLDER before the start."""
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)


def stop_profiler() -> None:
    """Does nothing; SageMaker Debugger calls it."""


def _get_id_for_herring_task() -> int:
    return next(_tasks)
