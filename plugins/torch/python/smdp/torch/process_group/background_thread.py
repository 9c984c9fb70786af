"""A thread of the plugin that begins with its first use, and ends before the interpreter does."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable

_MOST_S = 5.0


class BackgroundThread:
    """A daemon thread; a forked child begins one of its own.

    Args:
        name: Shown by debuggers.
        run: What it does, until `end` has been called.
        end: Has `run` return soon. Called at exit, as a thread that wakes up in a dying interpreter crashes
            it, and after the exit functions that were registered later.
    """

    def __init__(self, name: str, run: Callable[[], None], end: Callable[[], None]) -> None:
        self._name = name
        self._run = run
        self._end = end
        self._thread: threading.Thread | None = None
        self._is_starting = False
        # Entered twice by one thread: making a Thread may collect a Work, which asks for this one.
        self._lock = threading.RLock()
        atexit.register(self._stop)
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Begin, if it has not."""
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
        # A thread that is starting may ask for itself, before the other one knows it.
        return self._thread is not None or self._is_starting

    def is_current(self) -> bool:
        """Tell whether the caller runs on it."""
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
