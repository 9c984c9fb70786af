"""Ranges for torch's profiler, with the names that its tools look for, such as `smdp:all_reduce`."""

from __future__ import annotations

import contextlib
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
            ended: Future[None] = Future()
            range_._call_end_callbacks_on_future(ended)
            completion.watch(work.handles, lambda: ended.set_result(None))
        return work


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
