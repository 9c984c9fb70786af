"""Operations in flight, and the arrays that they work on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from . import _core
from ._arguments import seconds
from ._errors import TimeoutError


def wait_for_all(handles: Sequence[_core.Handle], limit: float | None) -> None:
    """Waits for one after the other, at most `limit` seconds in all; None: without a limit.

    Raises:
        SmdpError: An operation failed.
        TimeoutError: One is still running.
    """
    if limit is None or len(handles) == 1:
        for handle in handles:
            handle.wait(limit)
        return
    end = time.monotonic() + limit
    for handle in handles:
        try:
            handle.wait(max(0.0, end - time.monotonic()))
        except TimeoutError:
            if handle.done():  # its own deadline
                raise
            raise TimeoutError(
                f"[smdp] wait() gave up after {limit:g} s; the operation is still running. Wait again, or"
                " longer."
            ) from None


# In place of a result: the rank that a receive got its message from.
SOURCE = object()

# Those in flight: their arrays live on while they run, whatever the caller drops.
_running: set[Handle] = set()


def forget_ended() -> None:
    """Lets go of the arrays of operations that have ended."""
    if _running:
        for handle in list(_running):
            handle.done()


class Handle:
    """An operation in flight, from a call with ``async_op=True``."""

    def __init__(
        self, handles: Sequence[_core.Handle], buffers: Any, result: Any, group: _core.Group
    ) -> None:
        self._handles = handles
        self._buffers = buffers
        self._result = result
        # A group that nobody has any more is left, and what is in flight in it fails.
        self._group: _core.Group | None = group
        _running.add(self)

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until done and returns what the blocking call would have returned.

        Args:
            timeout: Seconds, for all together where it is several operations; they go on after that. Default:
                until the operation's own deadline.

        Raises:
            SmdpError: The operation failed.
            TimeoutError: It is still running.
        """
        limit = None if timeout is None else seconds("timeout", timeout)
        try:
            wait_for_all(self._handles, limit)
        finally:
            self.done()
        return self.source() if self._result is SOURCE else self._result

    def done(self) -> bool:
        """True once it has ended, well or not."""
        if not all(handle.done() for handle in self._handles):
            return False
        _running.discard(self)
        self._buffers = self._group = None
        return True

    def error(self) -> Exception | None:
        """Why it failed; None while it runs and after success."""
        for handle in self._handles:
            error = handle.error()
            if error is not None:
                return error
        return None

    def source(self) -> int:
        """Rank that a receive got its message from; -1 before."""
        return self._handles[0].source()


def keep(handles: Sequence[_core.Handle], buffers: Any, result: Any, group: _core.Group) -> Handle:
    """Returns a handle of operations in flight, which keeps their arrays alive."""
    forget_ended()
    return Handle(handles, buffers, result, group)


def finish(handle: _core.Handle | None, buffers: Any, result: Any, group: _core.Group) -> Any:
    """Returns what a call gives: a handle of an operation in flight, or the result of one that has ended."""
    if handle is not None:
        return keep([handle], buffers, result, group)
    forget_ended()
    return result
