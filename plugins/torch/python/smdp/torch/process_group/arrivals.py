"""A thread that waits for values from a device, so that asynchronous calls return at once.

It waits in the order in which the copies were enqueued, without holding the GIL.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from smdp import _core
from smdp.torch.process_group.background_thread import BackgroundThread

if TYPE_CHECKING:
    from smdp._core import Arrival, Group
    from smdp.torch.process_group.tensors import Staging

_logger = logging.getLogger("smdp.torch")
_last_ns = 0


class _Awaited:
    """Values on their way from a device. Keeps their memory, even if the operation fails earlier."""

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
        """Waits for the values, then lets the operations start."""
        global _last_ns
        self.staging.ready()
        _last_ns = time.monotonic_ns()
        if self.before is not None:
            self.before()
        self.arrival.arrive()


_queue: queue.SimpleQueue[_Awaited | None] = queue.SimpleQueue()
_inherited: list[object] = []


def expect(staging: Staging, keep: object, group: Group, before: Callable[[], None] | None = None) -> Arrival:
    """Returns the arrival of staged values, which operations that read them must wait for.

    Call it before the operations are started.

    Args:
        staging: The copies, which have begun.
        keep: All tensors that the copies fill.
        group: The group of the operations. It is closed on all ranks if a copy fails.
        before: A function that another thread calls when the values have arrived, before the operations
            start.
    """
    _thread.start()
    awaited = _Awaited(staging, keep, group, before)
    _queue.put(awaited)
    return awaited.arrival


def last_ns() -> int:
    """Returns the `time.monotonic_ns()` of the last arrival of values, or 0 if there was none."""
    return _last_ns


def _run() -> None:
    has_failed = False
    while (awaited := _queue.get()) is not None:
        try:
            awaited.wait()
        except Exception as error:
            with contextlib.suppress(Exception):  # the group may be closed already
                awaited.group.abort(f"copying values of this rank from their device failed: {error}")
            if not has_failed:  # after one failure, all later copies from the device fail too
                _logger.exception("[smdp] copying values from their device failed")
            has_failed = True
        del awaited  # holds tensors


def _forget() -> None:
    """Keeps inherited device objects alive in a forked child, where they must not be destroyed."""
    global _queue
    _inherited.append(_queue)
    _queue = queue.SimpleQueue()


_thread = BackgroundThread("smdp-arrivals", _run, lambda: _queue.put(None))
os.register_at_fork(after_in_child=_forget)
