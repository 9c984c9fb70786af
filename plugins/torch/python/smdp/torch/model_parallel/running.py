"""The microbatch that this thread runs: while there is one, calls of units go through the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smdp.torch.model_parallel.microbatch import Microbatch

_thread = threading.local()


def is_running() -> bool:
    """Tell whether this thread runs a program in stages."""
    return getattr(_thread, "is_running", False)


def running_microbatch() -> Microbatch | None:
    """Give the microbatch that this thread runs."""
    return getattr(_thread, "microbatch", None)


@contextlib.contextmanager
def running(microbatch: Microbatch | None = None) -> Iterator[None]:
    """Say so for as long as the context is open; the scout runs none."""
    _thread.is_running = True
    _thread.microbatch = microbatch
    try:
        yield
    finally:
        _thread.is_running = False
        _thread.microbatch = None
