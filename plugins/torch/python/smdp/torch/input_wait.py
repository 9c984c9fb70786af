"""Counts the time that training waits for its DataLoader, for `smdp.stats()` and traces."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data.dataloader import _BaseDataLoaderIter

from smdp import _core

_is_counting = True
_is_watching = False


@contextmanager
def uncounted() -> Iterator[None]:
    """Leave out what is waited for within: batches for an evaluation."""
    global _is_counting
    before, _is_counting = _is_counting, False
    try:
        yield
    finally:
        _is_counting = before


def watch() -> None:
    """Time every wait for a batch of any DataLoader of this process, from now on."""
    global _is_watching
    if _is_watching:
        return
    _is_watching = True
    plain = _BaseDataLoaderIter.__next__

    @functools.wraps(plain)
    def timed(loader: Any) -> Any:
        begin = time.monotonic_ns()
        try:
            return plain(loader)
        finally:
            if _is_counting:
                _core.count_input(begin, time.monotonic_ns())

    _BaseDataLoaderIter.__next__ = timed
