"""Measures how long a piece of work takes, by the wall clock or by its operations."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

# Typical of a CPU core with AVX2 in fp32. Only the ratios matter: between units, and of compute to memory.
FLOPS_PER_SECOND = 50e9
BYTES_PER_SECOND = 10e9

_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
# These read as much as they write, regardless of the size of the tensor that they select from.
_PICKING = {"embedding", "gather", "index", "index_select"}


@dataclass(slots=True)
class Reading:
    """The result of a clock."""

    seconds: float = 0.0


Clock = Callable[[], AbstractContextManager[Reading]]


@contextmanager
def wall_clock() -> Iterator[Reading]:
    """Measures the elapsed seconds, including the device's work and excluding waits for a CPU core.

    On a busy machine a runnable thread waits for other processes. Where the kernel counts these waits, they
    are subtracted.
    """
    reading = Reading()
    _wait_for_device()
    with _core_waits() as waited:
        begin = time.perf_counter()
        # Read inside the timed section, so that only waits within it are subtracted.
        before = waited()
        yield reading
        _wait_for_device()
        lost = waited() - before
        reading.seconds = time.perf_counter() - begin - lost


@contextmanager
def work_clock() -> Iterator[Reading]:
    """Adds up what operations would take one after the other at FLOPS_PER_SECOND and BYTES_PER_SECOND."""
    reading = Reading()
    with _Work() as work:
        yield reading
    reading.seconds = work.flops / FLOPS_PER_SECOND + work.nbytes / BYTES_PER_SECOND


@contextmanager
def _core_waits() -> Iterator[Callable[[], float]]:
    """Yields a function that returns the seconds for which this thread has waited for a core so far."""
    try:
        file = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
    except OSError:  # the kernel does not count the waits
        yield lambda: 0.0
        return
    try:
        yield lambda: int(os.pread(file, 64, 0).split()[1]) * 1e-9
    finally:
        os.close(file)


def _wait_for_device() -> None:
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        torch.cuda.synchronize()


class _Work(TorchDispatchMode):
    """Counts floating point operations and bytes; views are free."""

    # Operators without a FLOP formula count by their bytes.
    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.nbytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", func)
        name = packet.__name__
        if packet in flop_registry:
            self.flops += flop_registry[packet](*args, **kwargs, out_val=result)
        elif name == _CPU_ATTENTION:
            self.flops += sdpa_flop_count(*(tensor.shape for tensor in args[:3]))
        elif name == f"{_CPU_ATTENTION}_backward":
            self.flops += sdpa_backward_flop_count(*(tensor.shape for tensor in args[:4]))
        is_view = getattr(func, "is_view", False)
        if not is_view and any(isinstance(leaf, Tensor) for leaf in tree_leaves(result)):
            touched = tree_leaves((result, result) if name in _PICKING else (args, kwargs, result))
            self.nbytes += sum(_nbytes(leaf) for leaf in touched if isinstance(leaf, Tensor))
        return result


def _nbytes(tensor: Tensor) -> int:
    """Returns the bytes of a tensor; for a sparse one, those of its values."""
    if tensor.layout is torch.sparse_coo:
        return int(tensor._nnz()) * int(tensor.element_size())
    return int(tensor.nbytes)
