"""Names of calls, for frameworks that do not pass a name through to the core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smdp import _core


@contextmanager
def call_name(name: str) -> Iterator[None]:
    """Names the collectives that this thread calls inside the context; ranks compare the names.

    An empty name keeps the one in effect outside.
    """
    outside = _core.call_name()
    _core.set_call_name(name or outside)
    try:
        yield
    finally:
        _core.set_call_name(outside)
