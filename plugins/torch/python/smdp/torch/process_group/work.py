"""What torch gets back from a call: `torch.distributed.Work` over the core's handles."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Sequence
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

# Guards the few steps that the waiting thread and the completion thread could both take. Never held while
# waiting for another rank or while running a callback.
_lock = threading.Lock()


def seconds_of(timeout: timedelta) -> float:
    """Returns torch's time limit in the unit that the core takes: seconds.

    Raises:
        ValueError: It is not above 0.
    """
    return seconds("timeout", timeout.total_seconds())


class CompletedWork(Work):
    """An operation that has ended before the call returned. One object serves all calls: it has no result."""

    def is_completed(self) -> bool:
        """Give True."""
        return True

    def is_success(self) -> bool:
        """Give True: a failed synchronous call has raised."""
        return True

    def exception(self) -> None:
        """Give None."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return at once."""
        return True

    def synchronize(self) -> None:
        """Return at once."""

    def result(self) -> list[Tensor]:
        """Give no tensors."""
        return []

    def get_future(self) -> Future[list[Tensor]]:
        """Give a completed Future of no tensors."""
        future: Future[list[Tensor]] = Future()
        future.set_result([])
        return future


COMPLETED = CompletedWork()


class HandleWork(Work):
    """One or more operations in flight.

    Holds all memory which the core reads or writes. If it is dropped early the completion thread holds that
    memory until the operations have ended.

    Args:
        handles: The core's operations.
        tensors: The result of the Future, torch's convention: what the call has filled.
        keep: Every tensor whose memory the core uses.
        staging: Copies to make once the operations have ended.

    Attributes:
        handles: The core's operations.
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
        self._tensors = tensors
        self._keep = keep
        self._staging = staging
        self._is_copied = staging is None or not staging.has_results
        self._future: Future[list[Tensor]] | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until all has ended.

        Raises:
            smdp.SmdpError: The operation failed, or `timeout` (0: the group's), for all of it, is over.
            ValueError: `timeout` is below 0.
        """
        limit = seconds_of(timeout) if timeout else None
        wait_for_all(self.handles, limit)
        if self._staging is not None:
            self._copy()
            self._staging.order_stream()
        return True

    def synchronize(self) -> None:
        """Wait, and let the current stream wait for the results."""
        self.wait()

    def is_completed(self) -> bool:
        """Tell whether all has ended, well or not, and the results may be used."""
        if not self._has_ended():
            return False
        if self._staging is not None and self.exception() is None:
            self._copy()
            self._staging.order_stream()
        return True

    def is_success(self) -> bool:
        """Tell whether all has ended well."""
        return self.is_completed() and self.exception() is None

    def _has_ended(self) -> bool:
        return all(handle.done() for handle in self.handles)

    def exception(self) -> Exception | None:
        """Give the first error, if any."""
        for handle in self.handles:
            error = handle.error()
            if error is not None:
                return error
        return None

    def result(self) -> list[Tensor]:
        """Give the tensors which the call fills."""
        return self._tensors

    def source_rank(self) -> int:
        """Give the rank from which a tensor was received."""
        return self.handles[0].source()

    _source_rank = source_rank

    def get_future(self) -> Future[list[Tensor]]:
        """Give a Future of the filled tensors; its callbacks run on smdp's completion thread.

        Callbacks that communicate would do so in an order which differs between ranks. So where the calling
        function defines such callbacks (torch's PowerSGD hooks do), or the caller is a callback itself, the
        operation is waited for here and callbacks run in the caller's thread.
        """
        if completion.is_current_thread() or _callbacks_communicate():
            with contextlib.suppress(Exception):  # the Future carries the error
                self.wait()
        with _lock:
            if self._future is not None:
                return self._future
            cuda = None if self._staging is None else self._staging.cuda
            source: Future[Any] = Future(devices=None if cuda is None else [cuda.device])
            # Future.set_exception() would hand C++ callers the exception as a value; a raising callback is
            # what makes a Future fail for them too.
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
                self._is_copied = True  # not where that has failed

    def __del__(self) -> None:
        """Hand over memory which the core still uses, and copies still to be made."""
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
        except Exception as copy_error:  # noqa: BLE001 - handed to the Future
            self._source.set_result(copy_error)
            return
        if staging.cuda is None:
            self._source.set_result(work._tensors)
            return
        # The Future records an event on the current stream: the one that ran the copies.
        with staging.cuda.on_stream():
            self._source.set_result(work._tensors)


class _Keeper:
    """Outlives a Work that was dropped while in flight."""

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
    """Tell whether functions defined inside the caller of `get_future` ask for Futures themselves."""
    try:
        caller = sys._getframe(2).f_code
    except ValueError:  # a thread of C++, without a frame of Python
        return False
    answer = _communicating.get(caller)
    if answer is None:
        answer = _communicating[caller] = "get_future" in caller.co_names and any(
            "get_future" in constant.co_names
            for constant in caller.co_consts
            if isinstance(constant, CodeType)
        )
    return answer
