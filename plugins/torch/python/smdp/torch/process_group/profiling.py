"""Ranges for torch's profiler, with the names that its tools look for, such as `smdp:all_reduce`."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch._C._profiler import _RecordFunctionFast
from torch.autograd import _profiler_enabled
from torch.distributed import Work
from torch.futures import Future
from torch.profiler import record_function

from smdp.torch.process_group import completion
from smdp.torch.process_group.work import HandleWork

_LONGEST_END_S = 1.0  # the completion thread may be busy with a callback of the user


def ranged(name: str) -> contextlib.AbstractContextManager[Any]:
    """Returns a profiler range `smdp:name`, or an empty context if no profiler runs, to save its cost."""
    return record_function(f"smdp:{name}") if _profiler_enabled() else contextlib.nullcontext()


def profiled(name: str, call: Callable[[], Any], inputs: Sequence[Any], *, is_async: bool) -> Any:
    """Makes a call inside a profiler range that ends with the operation.

    Args:
        name: The name of the range.
        call: The call, which returns the Work.
        inputs: The arguments of the call. The range records the shapes of the tensors among them.
        is_async: Whether the operation may continue after the call returns.

    Returns:
        The result of the call.
    """
    tensors = _tensors_in(inputs)
    if not is_async:
        with _RecordFunctionFast(name, tensors):
            return call()
    with record_function(name, str([list(tensor.shape) for tensor in tensors])) as range_:
        work = call()
        if _is_under_way(work):
            end = _RangeEnd()
            range_._call_end_callbacks_on_future(end.future)
            work.after_wait = end.wait
            completion.watch(work.handles, end)
        return work


class _RangeEnd:
    """Ends a range on the completion thread, which makes the range asynchronous for the profiler.

    Attributes:
        future: The profiler's Future, whose completion ends the range.
    """

    def __init__(self) -> None:
        self.future: Future[None] = Future()
        self._has_ended = threading.Event()

    def __call__(self) -> None:
        self.future.set_result(None)
        self._has_ended.set()

    def wait(self) -> None:
        """Waits for the end, because a profiler that stops right after the operation would miss it."""
        if not completion.is_current_thread():
            self._has_ended.wait(_LONGEST_END_S)


def _is_under_way(work: Work) -> bool:
    return isinstance(work, HandleWork) and not all(handle.done() for handle in work.handles)


def _tensors_in(inputs: Sequence[Any]) -> list[Tensor]:
    found: list[Tensor] = []
    for one in inputs:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, list):
            found += _tensors_in(one)
    return found
