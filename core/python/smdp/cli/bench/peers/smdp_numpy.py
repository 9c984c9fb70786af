"""smdp on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import smdp
from smdp.cli.bench.peers.base import Peer, Work, numpy_buffers, numpy_work


class SmdpNumpy(Peer):
    """The group that smdp.init() returns."""

    name = "smdp-numpy"

    def __init__(self, rank: int, ranks: int) -> None:
        self._ranks = ranks
        self._group: Any = smdp.init()

    def prepare(self, operation: str, total: int, dtype: str) -> Work:
        """Allocates NumPy arrays; see Peer.prepare()."""
        source, result = numpy_buffers(operation, total, dtype, self._ranks)
        return numpy_work(self._call(operation, source, result), source, result)

    def _call(self, operation: str, source: Any, result: Any) -> Callable[[], object]:
        group = self._group
        if operation == "all_reduce":
            return lambda: group.all_reduce(source, out=result)
        if operation == "reduce_scatter":
            return lambda: group.reduce_scatter(source, out=result)
        if operation == "all_gather":
            return lambda: group.all_gather(source, out=result)
        if operation == "broadcast":
            return lambda: group.broadcast(source, 0)
        return lambda: group.all_to_all(source, out=result)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self._group.barrier()

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Returns the maximum of each value over all ranks."""
        array = np.array(values, dtype=np.float64)
        result = np.empty_like(array)
        self._group.all_reduce(array, op=smdp.MAX, out=result)
        return [float(value) for value in result]

    def close(self) -> None:
        """Leaves the world."""
        smdp.shutdown()
