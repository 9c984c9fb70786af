"""The thread that completes Futures and runs their callbacks.

The core's threads never take the GIL. They push a token to a queue when an operation has ended, and this
daemon thread waits in the core for tokens.
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from smdp import _core
from smdp._errors import ClosedError
from smdp.torch.process_group.background_thread import BackgroundThread

if TYPE_CHECKING:
    from smdp._core import Handle

_STOP = 0
_IDLE_S = 3600.0

_logger = logging.getLogger("smdp.torch")
_tokens = itertools.count(1)
_watched: dict[int, _Watch] = {}
_waker: Handle | None = None


class _Watch:
    """Calls `action` on the completion thread once all its handles have ended."""

    __slots__ = ("action", "pending")

    def __init__(self, pending: int, action: Callable[[], None]) -> None:
        self.pending = pending
        self.action = action


def watch(handles: Sequence[Handle], action: Callable[[], None]) -> None:
    """Calls `action` once on the completion thread when all handles have ended, successfully or not."""
    global _waker
    _thread.start()
    _waker = handles[-1]
    entry = _Watch(len(handles), action)
    for handle in handles:
        token = next(_tokens)
        _watched[token] = entry
        handle.notify(token)


def is_current_thread() -> bool:
    """Returns whether the caller runs on the completion thread, as callbacks of Futures do."""
    return _thread.is_current()


def _run() -> None:
    while True:
        try:
            token = _core.next_completion(_IDLE_S)
        except ClosedError:  # the program is exiting
            return
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
                _logger.exception("[smdp] completing an operation failed")
            del entry  # holds tensors


def _end() -> None:
    if _waker is not None:
        _waker.notify(_STOP)


def _forget() -> None:
    """Drops the operations of the parent process in a forked child."""
    global _waker
    _waker = None
    _watched.clear()


# Stopped after the exit function of process_group.py, which is registered later. All operations have then
# ended, so the waker's token is pushed at once.
_thread = BackgroundThread("smdp-completion", _run, _end)
os.register_at_fork(after_in_child=_forget)
