"""A contender that is used through torch.distributed, with any backend.

torch is imported by name at run time, because the smdp package does not depend on a framework.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smdp.cli.bench.peers.base import Array, Peer, Work, split


class TorchGroup(Peer):
    """A process group of all ranks."""

    def __init__(self, name: str, rank: int, ranks: int, backend: str) -> None:
        self.name = name
        self._ranks = ranks
        self._torch: Any = importlib.import_module("torch")
        self._dist: Any = importlib.import_module("torch.distributed")
        if self._dist.is_initialized():
            self._group = self._dist.new_group(backend=backend)
        else:
            self._dist.init_process_group(backend, rank=rank, world_size=ranks)
            self._group = self._dist.group.WORLD

    def prepare(self, operation: str, total: int, dtype: str) -> Work:
        """Allocates tensors; see Peer.prepare(). all_reduce and broadcast work in place, as in torch."""
        torch = self._torch
        inputs, outputs = split(operation, total, self._ranks)
        source = torch.empty(inputs, dtype=getattr(torch, dtype)).fill_(0)
        is_in_place = operation in ("all_reduce", "broadcast")
        result = source if is_in_place else torch.empty(outputs, dtype=source.dtype).fill_(0)

        def fill(values: Array) -> None:
            source.copy_(torch.from_numpy(values))

        def read(start: int, stop: int) -> Array:
            values: Array = result[start:stop].to(torch.float64).numpy()
            return values

        def clear() -> None:
            source.fill_(0)
            result.fill_(0)

        return Work(self._call(operation, source, result), fill, read, clear)

    def _call(self, operation: str, source: Any, result: Any) -> Callable[[], object]:
        dist, group = self._dist, self._group  # newer versions of torch deprecate the *_tensor names
        if operation == "all_reduce":
            return lambda: dist.all_reduce(source, group=group)
        if operation == "broadcast":
            return lambda: dist.broadcast(source, 0, group=group)
        if operation == "reduce_scatter":
            call = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
            return lambda: call(result, source, group=group)
        if operation == "all_gather":
            call = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
            return lambda: call(result, source, group=group)
        return lambda: dist.all_to_all_single(result, source, group=group)

    def barrier(self) -> None:
        """Waits for all ranks."""
        self._dist.barrier(group=self._group)

    def maximum(self, values: Sequence[float]) -> list[float]:
        """Returns the maximum of each value over all ranks."""
        tensor = self._torch.from_numpy(np.array(values, dtype=np.float64))
        self._dist.all_reduce(tensor, self._dist.ReduceOp.MAX, group=self._group)
        return [float(value) for value in tensor]

    def close(self) -> None:
        """Destroys all process groups."""
        if self._dist.is_initialized():
            self._dist.destroy_process_group()
