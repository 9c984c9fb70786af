"""The thread that waits until values have come from a device: who asked for the operation has more to do.

It waits in the order in which the copies were enqueued, and outside of the GIL.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from smdp import _core

if TYPE_CHECKING:
    from smdp._core import Arrival, Group
    from smdp.torch.tensors import Staging

_logger = logging.getLogger("smdp.torch")
_lock = threading.Lock()
_thread: threading.Thread | None = None
_last_ns = 0


class _Awaited:
    """Values on their way. Holds their memory: the operation may have failed before they come."""

    __slots__ = ("arrival", "before", "group", "keep", "staging")

    def __init__(
        self, staging: Staging, keep: object, group: Group, before: Callable[[], None] | None
    ) -> None:
        self.arrival: Arrival = _core.Arrival()
        self.staging = staging
        self.keep = keep
        self.group = group
        self.before = before

    def wait(self) -> None:
        global _last_ns
        self.staging.ready()
        _last_ns = time.monotonic_ns()
        if self.before is not None:
            self.before()
        self.arrival.arrive()


_queue: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
_inherited: list[object] = []


def expect(staging: Staging, keep: object, group: Group, before: Callable[[], None] | None = None) -> Arrival:
    """Give what operations that read staged values are to wait for; to be asked for before they are started.

    Args:
        staging: The copies, which have begun.
        keep: Every tensor that they fill.
        group: That of the operations; closed on all ranks if a copy fails.
        before: Called when the values are there, before the operations hear of it. Another thread calls it.
    """
    _start()
    awaited = _Awaited(staging, keep, group, before)
    _queue.put(awaited)
    return awaited.arrival


def last_ns() -> int:
    """Say when values came last, by `time.monotonic_ns`; 0: none have."""
    return _last_ns


def _start() -> None:
    global _thread
    if _thread is not None:
        return
    with _lock:
        if _thread is None:
            thread = threading.Thread(target=_run, name="smdp-arrivals", daemon=True)
            thread.start()
            _thread = thread


def _run() -> None:
    has_failed = False
    while (awaited := _queue.get()) is not None:
        try:
            awaited.wait()
        except Exception as error:
            with contextlib.suppress(Exception):  # it is closed
                awaited.group.abort(f"values of this rank have not arrived from their device: {error}")
            if not has_failed:  # what fails once on a device does so from then on
                _logger.exception("values have not arrived from their device")
            has_failed = True
        del awaited  # holds tensors


def _stop() -> None:
    """End the thread before the interpreter: one that wakes up in a dying interpreter crashes it."""
    if _thread is not None and _thread.is_alive():
        _queue.put(None)
        _thread.join(timeout=5.0)


def _forget() -> None:
    """Start anew in a forked child, which has no such thread."""
    global _thread, _queue, _lock
    _inherited.append(_queue)  # what it holds of a device must not end in this process
    _thread = None
    _queue = queue.SimpleQueue()
    _lock = threading.Lock()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
