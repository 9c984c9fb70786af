"""Operations in flight, and the arrays they use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from . import _core
from ._arguments import seconds
from ._errors import TimeoutError


def wait_for_all(handles: Sequence[_core.Handle], limit: float | None) -> None:
    """Waits for all handles, for at most `limit` seconds in total; None sets no limit.

    Raises:
        SmdpError: An operation failed.
        TimeoutError: An operation is still running after `limit` seconds.
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
            if handle.done():  # the operation reached its own deadline
                raise
            raise TimeoutError(
                f"[smdp] wait() gave up after {limit:g} s; the operation is still running. Call wait() again,"
                " or with a longer timeout."
            ) from None


# Placeholder for a result that is known only at the end: the rank that a message came from.
SOURCE = object()

# Handles in flight. They keep their arrays alive even if the caller drops its references.
_running: set[Handle] = set()


def forget_ended() -> None:
    """Releases the arrays of operations that have ended."""
    if _running:
        for handle in list(_running):
            handle.done()


class Handle:
    """An operation in flight, returned by calls with ``async_op=True``."""

    def __init__(
        self, handles: Sequence[_core.Handle], buffers: Any, result: Any, group: _core.Group
    ) -> None:
        self._handles = handles
        self._buffers = buffers
        self._result = result
        # A group without references is closed, which would fail its operations in flight.
        self._group: _core.Group | None = group
        _running.add(self)

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until the operation is done and returns the result of the blocking call.

        Args:
            timeout: Seconds to wait, in total if the handle stands for several operations. The operation
                continues after that. Default: wait until the operation's own deadline.

        Raises:
            SmdpError: The operation failed.
            TimeoutError: The operation is still running.
        """
        limit = None if timeout is None else seconds("timeout", timeout)
        try:
            wait_for_all(self._handles, limit)
        finally:
            self.done()
        return self.source() if self._result is SOURCE else self._result

    def done(self) -> bool:
        """Returns whether the operation has ended, with success or with an error."""
        if not all(handle.done() for handle in self._handles):
            return False
        _running.discard(self)
        self._buffers = self._group = None
        return True

    def error(self) -> Exception | None:
        """Returns the error of a failed operation; None while it runs and after success."""
        for handle in self._handles:
            error = handle.error()
            if error is not None:
                return error
        return None

    def source(self) -> int:
        """Returns the rank that sent the received message; -1 until the message has arrived."""
        return self._handles[0].source()


def keep(handles: Sequence[_core.Handle], buffers: Any, result: Any, group: _core.Group) -> Handle:
    """Returns a handle for operations in flight, which keeps their arrays alive."""
    forget_ended()
    return Handle(handles, buffers, result, group)


def finish(handle: _core.Handle | None, buffers: Any, result: Any, group: _core.Group) -> Any:
    """Returns a handle if the operation is in flight (`handle` is not None), and its result otherwise."""
    if handle is not None:
        return keep([handle], buffers, result, group)
    forget_ended()
    return result
