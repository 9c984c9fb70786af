"""The results of calls: `torch.distributed.Work` over the core's handles."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import CodeType
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.distributed import Work
from torch.futures import Future

from smdp._arguments import seconds
from smdp._handle import wait_for_all
from smdp.torch.process_group import completion

if TYPE_CHECKING:
    from smdp._core import Handle
    from smdp.torch.process_group.tensors import Staging

NO_TIMEOUT = timedelta(0)

# Guards the few steps that the waiting thread and the completion thread may both take. It is never held while
# waiting for another rank or running a callback.
_lock = threading.Lock()


def seconds_of(timeout: timedelta) -> float:
    """Returns torch's timeout in seconds, the unit of the core.

    Raises:
        ValueError: The timeout is not above 0.
    """
    return seconds("timeout", timeout.total_seconds())


class CompletedWork(Work):
    """An operation that ended before the call returned. All calls share one object, which has no result."""

    def is_completed(self) -> bool:
        """Returns True."""
        return True

    def is_success(self) -> bool:
        """Returns True, because a failed synchronous call has raised its error."""
        return True

    def exception(self) -> None:
        """Returns None."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Returns at once."""
        return True

    def synchronize(self) -> None:
        """Returns at once."""

    def result(self) -> list[Tensor]:
        """Returns an empty list."""
        return []

    def get_future(self) -> Future[list[Tensor]]:
        """Returns a completed Future of an empty list."""
        future: Future[list[Tensor]] = Future()
        future.set_result([])
        return future


COMPLETED = CompletedWork()


class HandleWork(Work):
    """One or more operations in flight.

    The Work keeps all memory that the core reads or writes. If it is dropped early, the completion thread
    keeps that memory until the operations have ended.

    Args:
        handles: The core's operations.
        tensors: The tensors that the call fills, which torch expects as the result of the Future.
        keep: All tensors whose memory the core uses.
        staging: Copies to make once the operations have ended.

    Attributes:
        handles: The core's operations.
        after_wait: What `wait()` calls once all operations have ended; None: nothing.
    """

    def __init__(
        self,
        handles: Sequence[Handle],
        tensors: list[Tensor],
        keep: object = None,
        staging: Staging | None = None,
    ) -> None:
        super().__init__()
        self.handles = handles
        self.after_wait: Callable[[], None] | None = None
        self._tensors = tensors
        self._keep = keep
        self._staging = staging
        self._is_copied = staging is None or not staging.has_results
        self._future: Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Waits until all operations have ended.

        Args:
            timeout: The limit for all operations together; 0 for the group's timeout.

        Raises:
            smdp.SmdpError: An operation failed, or the timeout has expired.
            ValueError: `timeout` is below 0.
        """
        limit = seconds_of(timeout) if timeout else None
        wait_for_all(self.handles, limit)
        if self.after_wait is not None:
            self.after_wait()
        if self._staging is not None:
            self._copy()
            self._staging.order_stream()
        return True

    def synchronize(self) -> None:
        """Waits, and makes the current stream wait for the results."""
        self.wait()

    def is_completed(self) -> bool:
        """Returns whether all operations have ended, successfully or not, and the results may be used."""
        if not self._has_ended():
            return False
        if self._staging is not None and self.exception() is None:
            self._copy()
            self._staging.order_stream()
        return True

    def is_success(self) -> bool:
        """Returns whether all operations have ended successfully."""
        return self.is_completed() and self.exception() is None

    def _has_ended(self) -> bool:
        return all(handle.done() for handle in self.handles)

    def exception(self) -> Exception | None:
        """Returns the first error, if any."""
        for handle in self.handles:
            error = handle.error()
            if error is not None:
                return error
        return None

    def result(self) -> list[Tensor]:
        """Returns the tensors that the call fills."""
        return self._tensors

    def source_rank(self) -> int:
        """Returns the rank from which the tensor was received."""
        return self.handles[0].source()

    _source_rank = source_rank

    def get_future(self) -> Future[list[Tensor]]:
        """Returns a Future of the filled tensors. Its callbacks run on smdp's completion thread.

        Callbacks that communicate would start operations in an order that differs between ranks. If the
        calling function defines such callbacks, as torch's PowerSGD hooks do, or is itself a callback, this
        method waits for the operation, and callbacks run in the caller's thread.
        """
        if completion.is_current_thread() or _callbacks_communicate():
            with contextlib.suppress(Exception):  # the Future carries the error
                self.wait()
        with _lock:
            if self._future is not None:
                return self._future
            cuda = None if self._staging is None else self._staging.cuda
            source: Future[Any] = Future(devices=None if cuda is None else [cuda.device])
            # Future.set_exception() would give C++ callers the exception as a value. A callback that raises
            # makes the Future fail for them as well.
            self._future = future = source.then(_value_or_raise)
        setter = _FutureSetter(self, source)
        if self._has_ended():
            setter()
        else:
            completion.watch(self.handles, setter)
        return future

    def _copy(self) -> None:
        staging = self._staging
        with _lock:
            if staging is not None and not self._is_copied:
                staging.finish()
                self._is_copied = True  # stays False if finish() fails

    def __del__(self) -> None:
        """Passes memory in use and outstanding copies on to the completion thread."""
        if sys.is_finalizing() or (self._is_copied and self._has_ended()):
            return
        completion.watch(self.handles, _Keeper(self))


class _FutureSetter:
    """Completes a Work's Future."""

    __slots__ = ("_source", "_work")

    def __init__(self, work: HandleWork, source: Future[Any]) -> None:
        self._work = work
        self._source = source

    def __call__(self) -> None:
        work = self._work
        staging = work._staging
        error = work.exception()
        if staging is None or error is not None:
            self._source.set_result(work._tensors if error is None else error)
            return
        try:
            work._copy()
        except Exception as copy_error:  # noqa: BLE001 - the Future raises it
            self._source.set_result(copy_error)
            return
        if staging.cuda is None:
            self._source.set_result(work._tensors)
            return
        # The Future records an event on the current stream, which must be the stream of the copies.
        with staging.cuda.on_stream():
            self._source.set_result(work._tensors)


class _Keeper:
    """Keeps the memory of a Work that was dropped while in flight, and makes its copies."""

    __slots__ = ("_keep", "_staging", "_tensors", "handles")

    def __init__(self, work: HandleWork) -> None:
        self.handles = work.handles
        self._tensors = work._tensors
        self._keep = work._keep
        self._staging = None if work._is_copied else work._staging

    def __call__(self) -> None:
        if self._staging is not None and all(handle.error() is None for handle in self.handles):
            self._staging.finish()


def _value_or_raise(future: Future[Any]) -> list[Tensor]:
    value = future.value()
    if isinstance(value, BaseException):
        raise value
    tensors: list[Tensor] = value
    return tensors


_communicating: dict[CodeType, bool] = {}


def _callbacks_communicate() -> bool:
    """Returns whether functions defined inside the caller of `get_future` call `get_future` themselves."""
    try:
        caller = sys._getframe(2).f_code
    except ValueError:  # a C++ thread without a Python frame
        return False
    answer = _communicating.get(caller)
    if answer is None:
        answer = _communicating[caller] = "get_future" in caller.co_names and any(
            "get_future" in constant.co_names
            for constant in caller.co_consts
            if isinstance(constant, CodeType)
        )
    return answer
