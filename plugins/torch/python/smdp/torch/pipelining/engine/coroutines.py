"""Functions that stop half-way and go on later: a microbatch waits at a stage boundary in the model's code.

Threads and not coroutines, because torch keeps grad mode and autocast per thread, and the model's code knows
nothing of being stopped. Control is handed over strictly: exactly one thread runs.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

# What is written to a counter is added to it.
_COUNT_TO_STOP = 1 << 32
_ONE = (1).to_bytes(8, "little")
_STOP = _COUNT_TO_STOP.to_bytes(8, "little")


class Abandoned(BaseException):
    """Ends a suspended function that nobody will resume; no `except Exception` of a model catches it."""


class Coroutine:
    """One function on a thread of its own."""

    def __init__(self, pool: CoroutinePool, function: Callable[[], None]) -> None:
        self._pool = pool
        self._worker: _Worker | None = None
        self._function: Callable[[], None] | None = function
        self._error: BaseException | None = None
        self._is_abandoned = False
        self.is_finished = False

    def resume(self) -> None:
        """Run until the function suspends or ends; raises what it raises."""
        if self._worker is None:
            self._worker = self._pool.take()
        self._worker.switch_to(self)
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def suspend(self) -> None:
        """Give control back to who resumed. Called by the function itself.

        Raises:
            Abandoned: Nobody wants it to go on.
        """
        assert self._worker is not None
        self._worker.switch_back()
        if self._is_abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """End a suspended function."""
        self._is_abandoned = True
        if self._worker is not None and not self.is_finished:
            self._worker.switch_to(self)

    def run(self) -> None:
        """Run the function to its end, on the worker's thread."""
        try:
            if self._function is not None and not self._is_abandoned:
                self._function()
        except Abandoned:
            pass
        except BaseException as error:  # noqa: BLE001 - handed to who resumed
            self._error = error
        self.is_finished = True
        self._function = None  # which has this coroutine


class _Worker:
    """A thread that runs one coroutine after the other.

    Control is handed over by the kernel's counters: who writes to one reads the other at once, so the kernel
    goes on with the other thread on the same core. Python's locks take four to ten times as long, where the
    other cores are busy: they wake the thread once for the lock and once more for the interpreter.
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
        """Let go of the counters; the thread has ended, or is the parent's of a forked process."""
        os.close(self._go)
        os.close(self._done)
        self._go = self._done = -1

    def _loop(self) -> None:
        while int.from_bytes(os.read(self._go, 8), "little") < _COUNT_TO_STOP:
            coroutine = self._coroutine
            if coroutine is None:
                continue  # the main thread was interrupted while the coroutine ran, and has ended it since
            coroutine.run()
            self._coroutine = None
            # What has ended must not be held until this thread is used again.
            del coroutine
            self._pool.put_back(self)
            os.write(self._done, _ONE)
        _workers.discard(self)
        self.close()


_workers: weakref.WeakSet[_Worker] = weakref.WeakSet()


def _after_fork() -> None:
    """A child has none of the threads, and must not wake its parent's."""
    for worker in list(_workers):
        worker.close()
    _workers.clear()


os.register_at_fork(after_in_child=_after_fork)


class CoroutinePool:
    """Threads for as many functions as are under way at once; the last one used is used again first."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def start(self, function: Callable[[], None]) -> Coroutine:
        """Returns a coroutine that runs nothing before its first resume()."""
        return Coroutine(self, function)

    def take(self) -> _Worker:
        """Give a thread that has nothing to do."""
        return self._idle.pop() if self._idle else _Worker(self)

    def put_back(self, worker: _Worker) -> None:
        """Take a thread whose function has ended."""
        self._idle.append(worker)

    def close(self) -> None:
        """End the idle threads."""
        while self._idle:
            self._idle.pop().stop()
