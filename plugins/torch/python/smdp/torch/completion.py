"""The thread on which Futures are completed and their callbacks run.

The core's own threads never take the GIL. They push a token to a queue when an operation has ended; this
daemon thread blocks in the core until there is one.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smdp import _core

if TYPE_CHECKING:
    from smdp._core import Handle

_STOP = 0
_IDLE_S = 3600.0

_logger = logging.getLogger("smdp.torch")
_lock = threading.Lock()
_tokens = itertools.count(1)
_watched: dict[int, _Watch] = {}
_thread: threading.Thread | None = None
_waker: Handle | None = None


class _Watch:
    """Calls `action` on the completion thread once all its handles have ended."""

    __slots__ = ("action", "pending")

    def __init__(self, pending: int, action: Callable[[], None]) -> None:
        self.pending = pending
        self.action = action


def watch(handles: Sequence[Handle], action: Callable[[], None]) -> None:
    """Call `action` once, on the completion thread, when all handles have ended, well or not."""
    global _waker
    _start()
    _waker = handles[-1]
    entry = _Watch(len(handles), action)
    for handle in handles:
        token = next(_tokens)
        _watched[token] = entry
        handle.notify(token)


def is_current_thread() -> bool:
    """Tell whether the caller is a callback of a Future."""
    return _thread is not None and _thread.ident == threading.get_ident()


def _start() -> None:
    global _thread
    if _thread is not None:
        return
    with _lock:
        if _thread is None:
            thread = threading.Thread(target=_run, name="smdp-completion", daemon=True)
            thread.start()
            _thread = thread


def _run() -> None:
    while True:
        token = _core.next_completion(_IDLE_S)
        if token == _STOP:
            return
        entry = None if token is None else _watched.pop(token, None)
        if entry is None:
            continue
        entry.pending -= 1
        if entry.pending == 0:
            try:
                entry.action()
            except Exception:
                _logger.exception("completing an operation failed")
            del entry  # holds tensors


def _stop() -> None:
    """End the thread before the interpreter: one that wakes up in a dying interpreter crashes it."""
    thread, waker = _thread, _waker
    if thread is None or waker is None or not thread.is_alive():
        return
    with contextlib.suppress(Exception):
        waker.notify(_STOP)
        thread.join(timeout=5.0)


def _forget() -> None:
    """Start anew in a forked child, which has no completion thread."""
    global _thread, _waker
    _thread = _waker = None
    _watched.clear()


# Registered before the hook of process_group.py, hence run after it: all operations have ended by then, so
# that the waker's token is pushed at once.
atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
