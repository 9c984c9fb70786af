"""A time limit for every call of torch's store."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from torch.distributed.distributed_c10d import Store

from smdp._errors import TimeoutError

_SLICE_S = 1.0

_Answer = queue.SimpleQueue[tuple[Any, Exception | None]]
_Call = tuple[Callable[..., Any], tuple[Any, ...], _Answer]


class BoundedStore:
    """Calls a store on a thread, because torch's client waits forever for a server that has stopped.

    Leaving the context ends the thread, which holds the store. A later call starts a new thread.

    Args:
        store: torch's store.
        limit_s: The time limit of one call in seconds.
        rank: The rank of this process in the group that uses the store.
        size: The number of ranks in the group.
        group: The name of the group.
        meanwhile: A function that is called about once a second while a call waits. An error that it raises
            ends the wait.

    Attributes:
        failure: The error of a call that took too long. All later calls raise it at once.
    """

    def __init__(
        self,
        store: Store,
        limit_s: float,
        rank: int,
        size: int,
        group: str,
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        self._store = store
        self._limit_s = limit_s
        self._rank = rank
        self._size = size
        self._group = group
        self._meanwhile = meanwhile
        self.failure: TimeoutError | None = None
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _is_running, so that every queued call has a running thread
        self._is_running = False

    def __enter__(self) -> BoundedStore:
        """Returns the object itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the thread when its current call has ended."""
        with self._lock:
            if self._is_running:
                self._calls.put(None)

    def set(self, key: str, value: str | bytes) -> None:
        """Sets a value."""
        self._call(self._store.set, key, value)

    def get(self, key: str) -> bytes:
        """Returns an existing value."""
        value: bytes = self._call(self._store.get, key)
        return value

    def check(self, keys: list[str]) -> bool:
        """Returns whether all keys exist."""
        return bool(self._call(self._store.check, keys))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self.failure is not None:
            raise self.failure
        answer: _Answer = queue.SimpleQueue()
        with self._lock:
            self._calls.put((function, arguments, answer))
            if not self._is_running:
                threading.Thread(target=self._run, name="smdp-store", daemon=True).start()
                self._is_running = True
        deadline = time.monotonic() + self._limit_s
        while True:  # in slices, because a signal right before a wait would be handled only after it
            left = deadline - time.monotonic()
            try:
                value, error = answer.get(timeout=min(max(left, 0.0), _SLICE_S))
            except queue.Empty:
                if left <= 0:
                    self.failure = TimeoutError(
                        f"[smdp] rank {self._rank} of {self._size}: torch's store has not answered for"
                        f" {self._limit_s:g} s while the ranks of group {self._group!r} were joining. Rank 0,"
                        " or the launcher that holds the store, is stopped, or its machine hangs. Check that"
                        " process. SMDP_INIT_TIMEOUT sets the wait."
                    )
                    raise self.failure from None
                if self._meanwhile is not None:
                    self._meanwhile()
                continue
            if error is not None:
                raise error
            return value

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                with self._lock:
                    if self._calls.empty():
                        self._is_running = False
                        return
                continue
            function, arguments, answer = call
            try:
                answer.put((function(*arguments), None))
            except Exception as error:  # noqa: BLE001 - raised in the waiting thread
                answer.put((None, error))
            del call, function, arguments, answer  # these keep the store alive
