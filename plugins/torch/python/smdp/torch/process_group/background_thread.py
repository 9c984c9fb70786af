"""A thread that starts on first use and ends before the interpreter exits."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable

_MOST_S = 5.0


class BackgroundThread:
    """A daemon thread. A forked child starts its own.

    Args:
        name: The name of the thread, which debuggers show.
        run: The function that the thread runs until `end` is called.
        end: Makes `run` return soon. It is called at exit, after the exit functions registered later, because
            a thread that wakes up during interpreter shutdown would crash it.
    """

    def __init__(self, name: str, run: Callable[[], None], end: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._end = end
        self._thread: threading.Thread | None = None
        self._is_starting = False
        # Reentrant, because creating a Thread may collect a Work, which calls start().
        self._lock = threading.RLock()
        atexit.register(self._stop)
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Starts the thread unless it has been started."""
        if self._has_begun():
            return
        with self._lock:
            if self._has_begun():
                return
            self._is_starting = True
            try:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()
                self._thread = thread
            finally:
                self._is_starting = False

    def _has_begun(self) -> bool:
        # The new thread may call start() before _thread is set.
        return self._thread is not None or self._is_starting

    def is_current(self) -> bool:
        """Returns whether the caller runs on this thread."""
        return self._thread is not None and self._thread.ident == threading.get_ident()

    def _stop(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            return
        with contextlib.suppress(Exception):
            self._end()
            self._thread.join(timeout=_MOST_S)

    def _forget(self) -> None:
        self._thread = None
        self._is_starting = False
        self._lock = threading.RLock()
