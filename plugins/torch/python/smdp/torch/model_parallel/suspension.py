"""Functions that stop half-way and go on later: a microbatch waits at a stage boundary in the model's code.

Threads and not coroutines, because torch keeps grad mode and autocast per thread, and the model's code knows
nothing of being stopped. Control is handed over strictly: exactly one thread runs.
"""

from __future__ import annotations

import threading
from collections.abc import Callable


class Abandoned(BaseException):
    """Ends a suspended function that nobody will resume; no `except Exception` of a model catches it."""


class Strand:
    """One function on a thread of its own."""

    def __init__(self, pool: Strands, function: Callable[[], None]) -> None:
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
        self._function = None  # which has this strand


class _Worker:
    """A thread that runs one strand after the other; both semaphores hand over control."""

    def __init__(self, pool: Strands) -> None:
        self._pool = pool
        self._go = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._strand: Strand | None = None
        threading.Thread(target=self._loop, name="smdp microbatch", daemon=True).start()

    def switch_to(self, strand: Strand) -> None:
        self._strand = strand
        self._go.release()
        self._done.acquire()

    def switch_back(self) -> None:
        self._done.release()
        self._go.acquire()

    def stop(self) -> None:
        self._strand = None
        self._go.release()

    def _loop(self) -> None:
        while True:
            self._go.acquire()
            strand = self._strand
            if strand is None:
                return
            strand.run()
            self._strand = None
            # What has ended must not be held until this thread is used again.
            del strand
            self._pool.put_back(self)
            self._done.release()


class Strands:
    """Threads for as many functions as are under way at once; the last one used is used again first."""

    def __init__(self) -> None:
        self._idle: list[_Worker] = []

    def start(self, function: Callable[[], None]) -> Strand:
        """Give a strand that runs nothing before its first resume()."""
        return Strand(self, function)

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
