"""Finds reads of awaited parameters that do not go through torch's Python functions."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from smdp.torch.forward_waits.awaited_parameter import awaited_in, finish

# An operation costs some microseconds more while reads are watched, so this is not done for long.
_MOST_OPERATIONS = 1000


class DirectReads:
    """Finishes awaited parameters that an operation of the watched threads reads.

    Args:
        limit: Is called when many operations have read nothing.
    """

    def __init__(self, limit: Callable[[], None]) -> None:
        self._limit = limit
        self._users: set[int] = set()  # changed and read at once: the interpreter's lock suffices
        self._modes = threading.local()

    def open(self, user: object) -> bool:
        """Watches the operations of this thread.

        Returns:
            Whether it does. Below modes of others it could not be ended.
        """
        stack = _get_current_dispatch_mode_stack()
        mode: _Mode | None = getattr(self._modes, "mode", None)
        if stack and stack != [mode]:
            return False
        if mode is None or not stack:
            mode = self._modes.mode = _Mode(self)
            mode.__enter__()
        mode.count = 0
        self._users.add(id(user))
        return True

    def close(self, user: object) -> None:
        """Ends the watch if no other user needs it.

        Modes form a stack, and what others have put on it since must end first. Until then the mode lets all
        operations pass.
        """
        self._users.discard(id(user))
        stack = _get_current_dispatch_mode_stack()
        mode = getattr(self._modes, "mode", None)
        if not self._users and mode is not None and stack and stack[-1] is mode:
            mode.__exit__(None, None, None)

    def look(self, mode: _Mode, values: Any) -> None:
        """Finishes the awaited parameters among the arguments of an operation."""
        if not self._users:
            return
        for one in awaited_in(values):
            finish(one, is_direct=True)
        mode.count += 1
        if mode.count == _MOST_OPERATIONS:
            self._limit()


class _Mode(TorchDispatchMode):
    supports_higher_order_operators = True

    def __init__(self, reads: DirectReads) -> None:
        super().__init__()
        self._reads = reads
        self.count = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Lets torch.compile work."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Looks at the arguments, and carries out the operation."""
        kwargs = kwargs or {}
        self._reads.look(self, (args, kwargs))
        return func(*args, **kwargs)
