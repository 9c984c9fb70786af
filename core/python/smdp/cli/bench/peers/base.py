"""The interface of a library that the benchmark measures."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Work:
    """A collective with its buffers, ready to be repeated.

    Attributes:
        run: Runs the collective once.
        fill: Copies values to the input.
        read: Returns the output from `start` to `stop` as float64.
        clear: Fills the buffers with zeros, which keeps in-place sums finite and faults all pages in.
    """

    run: Callable[[], object]
    fill: Callable[[Array], None]
    read: Callable[[int, int], Array]
    clear: Callable[[], None]


class Peer(ABC):
    """A library, set up for a world of ranks."""

    name: str

    @abstractmethod
    def prepare(self, operation: str, total: int, dtype: str) -> Work:
        """Allocates the buffers of an operation and returns it as Work.

        Args:
            operation: One of smdp.cli.bench.OPERATIONS.
            total: Number of elements of the larger buffer; a multiple of the world size if it is split.
            dtype: One of smdp.cli.bench.DTYPES.
        """

    @abstractmethod
    def barrier(self) -> None:
        """Waits for all ranks."""

    @abstractmethod
    def maximum(self, values: Sequence[float]) -> list[float]:
        """Returns the maximum of each value over all ranks."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the world."""


def split(operation: str, total: int, ranks: int) -> tuple[int, int]:
    """Returns the number of elements of the input and of the output."""
    part = total // ranks
    return {"reduce_scatter": (total, part), "all_gather": (part, total)}.get(operation, (total, total))


def numpy_buffers(operation: str, total: int, dtype: str, ranks: int) -> tuple[Array, Array]:
    """Allocates the input and output arrays, which are the same array for broadcast."""
    if dtype == "bfloat16":
        import ml_dtypes

        kind = np.dtype(ml_dtypes.bfloat16)
    else:
        kind = np.dtype(dtype)
    inputs, outputs = split(operation, total, ranks)
    source = np.empty(inputs, kind)
    source.fill(0)
    if operation == "broadcast":
        return source, source
    result = np.empty(outputs, kind)
    result.fill(0)
    return source, result


def numpy_work(run: Callable[[], object], source: Array, result: Array) -> Work:
    """Returns Work on NumPy arrays."""

    def fill(values: Array) -> None:
        source[:] = values.astype(source.dtype)

    def read(start: int, stop: int) -> Array:
        return result[start:stop].astype(np.float64)

    def clear() -> None:
        source.fill(0)
        result.fill(0)

    return Work(run, fill, read, clear)
