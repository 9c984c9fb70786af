"""Wraps every call from torch in a profiler range, and adds rank and call to its errors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch.autograd import _profiler_enabled

from smdp.torch.process_group.profiling import profiled

if TYPE_CHECKING:
    from smdp.torch.process_group._calls import Calls

# Methods of torch's ProcessGroup, also under their names before torch 2.13, and the core's names for them. A
# method that only calls another one of these is not listed.
CALLS = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "reduce": "reduce",
    "broadcast": "broadcast",
    "allgather": "all_gather",
    "allgather_coalesced": "all_gather_coalesced",
    "all_gather_single_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "reduce_scatter_single_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "alltoall": "all_to_all",
    "all_to_all_single": "all_to_all_single",
    "alltoall_base": "all_to_all_single",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "send": "send",
    "recv": "recv",
}


def wrap_calls(group_class: type[Calls]) -> None:
    """Wraps the methods of a ProcessGroup class."""
    for method, name in CALLS.items():
        setattr(group_class, method, _wrapped(getattr(group_class, method), name))


def _wrapped(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    range_name = f"smdp:{name.removesuffix('_coalesced').removesuffix('_single')}"

    @functools.wraps(method)
    def call(self: Calls, *args: Any, **kwargs: Any) -> Any:
        try:
            if not _profiler_enabled():
                return method(self, *args, **kwargs)
            return profiled(
                range_name,
                functools.partial(method, self, *args, **kwargs),
                args,
                is_async=getattr(args[-1], "asyncOp", True) if args else False,
            )
        except (
            TypeError,
            ValueError,
            NotImplementedError,
        ) as error:  # about the arguments of this rank
            _complete(error, self._group.tag, name)
            raise

    return call


def _complete(error: Exception, tag: str, name: str) -> None:
    """Adds rank and call to the beginning of a message that does not name them."""
    text = str(error)
    if text.startswith("[smdp] rank "):
        return
    text = text.removeprefix("[smdp] ")
    error.args = (f"{tag}: {text}" if text.startswith(name) else f"{tag}: {name}: {text}",)
