"""Counts the time that training waits for its DataLoader for `smdp.stats()` and traces."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from smdp import _core

_is_counting = True
# The original method and its replacement, while waits are timed.
_taught: tuple[Any, Any] | None = None


@contextmanager
def uncounted() -> Iterator[None]:
    """Does not count the waits within the context, for example those of an evaluation."""
    global _is_counting
    before, _is_counting = _is_counting, False
    try:
        yield
    finally:
        _is_counting = before


def watch() -> None:
    """Starts timing every wait for a batch from any DataLoader of this process."""
    global _taught
    if _taught is not None:
        return
    plain = _BaseDataLoaderIter.__next__

    @functools.wraps(plain)
    def timed(loader: Any) -> Any:
        begin = time.monotonic_ns()
        try:
            return plain(loader)
        finally:
            if _is_counting and _taught is not None:
                _core.count_input(begin, time.monotonic_ns())

    _taught = plain, timed
    _BaseDataLoaderIter.__next__ = timed


def unwatch() -> None:
    """Stops timing and restores DataLoader, unless other code has patched it since."""
    global _taught
    if _taught is not None and _BaseDataLoaderIter.__next__ is _taught[1]:
        _BaseDataLoaderIter.__next__ = _taught[0]
    _taught = None
