"""The thread that waits until values have come from a device: who asked for the operation has more to do.

It waits in the order in which the copies were enqueued, and does so outside the GIL.
"""

from __future__ import annotations

import atexit
import logging
import os
import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smdp._core import Arrival, Group
    from smdp.torch.tensors import Staging

_logger = logging.getLogger("smdp.torch")
_lock = threading.Lock()
_thread: threading.Thread | None = None


class _Awaited:
    """Values on their way. Holds their memory: the operation may have failed before they come."""

    __slots__ = ("arrival", "group", "keep", "staging")

    def __init__(self, arrival: Arrival, staging: Staging, keep: object, group: Group) -> None:
        self.arrival = arrival
        self.staging = staging
        self.keep = keep
        self.group = group

    def wait(self) -> None:
        """Wait for them. Where they do not come, all ranks are told why."""
        try:
            self.staging.ready()
        except Exception as error:
            _logger.exception("values have not arrived from their device")
            self.group.abort(f"values of this rank have not arrived from their device: {error}")
            return
        self.arrival.arrive()


_queue: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()


def expect(arrival: Arrival, staging: Staging, keep: object, group: Group) -> None:
    """Have `arrival.arrive()` called once the copies that `staging` has begun are over.

    Args:
        arrival: What an operation that has been started waits for.
        staging: The copies.
        keep: Every tensor that they fill.
        group: Closed on all ranks if a copy fails.
    """
    _start()
    _queue.put(_Awaited(arrival, staging, keep, group))


def _start() -> None:
    global _thread
    if _thread is not None:
        return
    with _lock:
        if _thread is None:
            _thread = threading.Thread(target=_run, name="smdp-arrivals", daemon=True)
            _thread.start()


def _run() -> None:
    while (awaited := _queue.get()) is not None:
        awaited.wait()
        del awaited  # holds tensors


def _stop() -> None:
    """End the thread before the interpreter: one that wakes up in a dying interpreter crashes it."""
    if _thread is not None and _thread.is_alive():
        _queue.put(None)
        _thread.join(timeout=5.0)


def _forget() -> None:
    """Start anew in a forked child, which has no such thread."""
    global _thread, _queue
    _thread = None
    _queue = queue.SimpleQueue()


atexit.register(_stop)
os.register_at_fork(after_in_child=_forget)
