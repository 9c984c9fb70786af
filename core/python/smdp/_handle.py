"""Operations in flight, and the arrays that they work on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import _core
from ._arguments import seconds


class Handle:
    """An operation in flight, from a call with ``async_op=True``."""

    def __init__(
        self, handles: Sequence[_core.Handle], buffers: Any, result: Any, in_flight: set[Handle]
    ) -> None:
        self._handles = handles
        self._buffers = buffers
        self._result = result
        self._in_flight = in_flight
        # Keeps the arrays alive while the operation runs, even if the caller drops the handle.
        in_flight.add(self)

    def wait(self, timeout: float | None = None) -> Any:
        """Blocks until done and returns what the blocking call would have returned.

        Args:
            timeout: Seconds; the operation goes on after it. Default: until the operation's own deadline.

        Raises:
            SmdpError: The operation failed.
            TimeoutError: It is still running.
        """
        limit = None if timeout is None else seconds("timeout", timeout)
        try:
            for handle in self._handles:
                handle.wait(limit)
        finally:
            self.done()
        return self._result

    def done(self) -> bool:
        """True once it has ended, well or not."""
        if not all(handle.done() for handle in self._handles):
            return False
        self._in_flight.discard(self)
        self._buffers = None
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
