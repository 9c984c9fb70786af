"""Names of calls, where nothing between the program and the core carries one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smdp import _core


@contextmanager
def call_name(name: str) -> Iterator[None]:
    """Collectives that this thread calls inside have this name, which ranks compare. Empty: as outside."""
    outside = _core.call_name()
    _core.set_call_name(name or outside)
    try:
        yield
    finally:
        _core.set_call_name(outside)
