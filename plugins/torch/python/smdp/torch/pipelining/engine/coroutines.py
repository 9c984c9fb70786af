"""Functions that can suspend, such as a microbatch that waits at a stage boundary inside the model's code.

They run on threads instead of Python coroutines because the model's code is not written to be suspended, and
because torch keeps grad mode and autocast per thread. Exactly one of the threads runs at any time.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

# An eventfd adds each written number to its counter.
_COUNT_TO_STOP = 1 << 32
_ONE = (1).to_bytes(8, "little")
_STOP = _COUNT_TO_STOP.to_bytes(8, "little")


class Abandoned(BaseException):
    """Ends a suspended function that will not be resumed; a model's `except Exception` does not catch it."""


class Coroutine:
    """One function that runs on its own thread."""

    def __init__(self, pool: CoroutinePool, function: Callable[[], None]) -> None:
        self._pool = pool
        self._worker: _Worker | None = None
        self._function: Callable[[], None] | None = function
        self._error: BaseException | None = None
        self._is_abandoned = False
        self.is_finished = False

    def resume(self) -> None:
        """Runs until the function suspends or ends, and raises any exception that the function raised."""
        if self._worker is None:
            self._worker = self._pool.take()
        self._worker.switch_to(self)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def suspend(self) -> None:
        """Returns control to the caller of resume(). Called by the function itself.

        Raises:
            Abandoned: The function is to end here.
        """
        assert self._worker is not None
        self._worker.switch_back()
        if self._is_abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """Ends a suspended function."""
        self._is_abandoned = True
        if self._worker is not None and not self.is_finished:
            self._worker.switch_to(self)

    def run(self) -> None:
        """Runs the function to its end, on the worker's thread."""
        try:
            if self._function is not None and not self._is_abandoned:
                self._function()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - resume() raises it
            self._error = error
        self.is_finished = True
        self._function = None  # breaks the reference cycle with this coroutine


class _Worker:
    """A thread that runs one coroutine at a time.

    Control is handed over by eventfd counters. A thread that writes to one counter reads the other at once,
    so the kernel continues with the other thread on the same core. Python's locks take four to ten times as
    long while other cores are busy, because they wake the thread once for the lock and once more for the
    interpreter.
    """

    def __init__(self, pool: CoroutinePool) -> None:
        self._pool = pool
        self._go = os.eventfd(0, os.EFD_CLOEXEC)
        self._done = os.eventfd(0, os.EFD_CLOEXEC)
        self._coroutine: Coroutine | None = None
        _workers.add(self)
        threading.Thread(target=self._loop, name="smdp microbatch", daemon=True).start()

    def switch_to(self, coroutine: Coroutine) -> None:
        self._coroutine = coroutine
        os.write(self._go, _ONE)
        os.read(self._done, 8)

    def switch_back(self) -> None:
        os.write(self._done, _ONE)
        os.read(self._go, 8)

    def stop(self) -> None:
        if self._go >= 0:
            os.write(self._go, _STOP)

    def close(self) -> None:
        """Closes the counters once the thread has ended, or in a forked child, which does not have it."""
        os.close(self._go)
        os.close(self._done)
        self._go = self._done = -1

    def _loop(self) -> None:
        while int.from_bytes(os.read(self._go, 8), "little") < _COUNT_TO_STOP:
            coroutine = self._coroutine
            if coroutine is None:
                continue  # an interrupt hit the main thread while the coroutine ran, which has ended since
            coroutine.run()
            self._coroutine = None
            # An idle thread must not keep the finished coroutine alive.
            del coroutine
            self._pool.put_back(self)
            os.write(self._done, _ONE)
        _workers.discard(self)
        self.close()


_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


def _after_fork() -> None:
    """Closes the workers in a forked child, which has no threads and must not wake those of its parent."""
    for worker in list(_workers):
        worker.close()
    _workers.clear()


os.register_at_fork(after_in_child=_after_fork)


class CoroutinePool:
    """Worker threads for suspended functions; the most recently used idle thread is used first."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def start(self, function: Callable[[], None]) -> Coroutine:
        """Returns a coroutine that does not run before its first resume()."""
        return Coroutine(self, function)

    def take(self) -> _Worker:
        """Returns an idle worker thread."""
        return self._idle.pop() if self._idle else _Worker(self)

    def put_back(self, worker: _Worker) -> None:
        """Takes back a thread whose function has ended."""
        self._idle.append(worker)

    def close(self) -> None:
        """Ends the idle threads."""
        while self._idle:
            self._idle.pop().stop()
