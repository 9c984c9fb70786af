"""Whether this thread runs a microbatch: then calls of units go through the interpreter."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

_thread = threading.local()


def is_running() -> bool:
    """Tell whether this thread runs a microbatch."""
    return getattr(_thread, "is_running", False)


@contextlib.contextmanager
def running() -> Iterator[None]:
    """Say so for as long as the context is open."""
    _thread.is_running = True
    try:
        yield
    finally:
        _thread.is_running = False
