"""The thread that waits until values have come from a device: who asked for the operation has more to do.

It waits in the order in which the copies were enqueued, and outside of the GIL.
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
        """Wait for them, and tell the operations."""
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
    _thread.start()
    awaited = _Awaited(staging, keep, group, before)
    _queue.put(awaited)
    return awaited.arrival


def last_ns() -> int:
    """Say when values came last, by `time.monotonic_ns`; 0: none have."""
    return _last_ns


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


def _forget() -> None:
    """Keep what a forked child has inherited of a device from ending in that process."""
    global _queue
    _inherited.append(_queue)
    _queue = queue.SimpleQueue()


_thread = BackgroundThread("smdp-arrivals", _run, lambda: _queue.put(None))
os.register_at_fork(after_in_child=_forget)
