"""Tensors on the CPU that are staged like those of a device: their values come later, by a thread's hand."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor

from smdp.torch.process_group import reductions, tensors
from smdp.torch.process_group.process_group import ProcessGroupSmdp

_MODULES = ("data_parallel.comm_hook", "process_group.gathers", "process_group.reductions")


class LateStaging(tensors.Staging):
    """Copies when `ready` is called, and tells the thread that does it.

    Attributes:
        gate: `ready` waits for it, up to 20 s.
        error: What `ready` raises, if anything.
        threads: Names of those that have called `ready`, in order.
    """

    gate = threading.Event()
    error: Exception | None = None
    threads: ClassVar[list[str]] = []

    def __init__(self, call: str) -> None:
        super().__init__(call)
        self._pending: list[tuple[Tensor, Tensor]] = []

    is_late = True

    def _stage_late(self, tensor: Tensor, *, load: bool, store: bool) -> Tensor:
        host = torch.full(tensor.shape, 77, dtype=tensor.dtype)
        if load:
            self._pending.append((host, tensor))
        if store:
            self._copies.append((tensor, host))
        return host

    def read(self, tensor: Tensor) -> Tensor:
        return self._stage_late(tensor, load=True, store=False)

    def write(self, tensor: Tensor) -> Tensor:
        return self._stage_late(tensor, load=False, store=True)

    def update(self, tensor: Tensor) -> Tensor:
        return self._stage_late(tensor, load=True, store=True)

    def ready(self) -> None:
        assert self.gate.wait(20)
        self.threads.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        for host, tensor in self._pending:
            host.copy_(tensor)


@contextlib.contextmanager
def late_values() -> Iterator[type[LateStaging]]:
    """Have everything staged by a new class of that kind."""

    class Staging(LateStaging):
        gate = threading.Event()
        threads: ClassVar[list[str]] = []

    with contextlib.ExitStack() as stack:
        for module in _MODULES:
            stack.enter_context(mock.patch.object(sys.modules[f"smdp.torch.{module}"], "Staging", Staging))
        # The hot path takes no plain tensor for one to stage.
        staged: Any = ProcessGroupSmdp._allreduce_staged
        stack.enter_context(
            mock.patch.object(
                ProcessGroupSmdp,
                "allreduce",
                lambda self, tensors, opts=reductions._ALL_REDUCE: staged(
                    self, tensors if isinstance(tensors, Tensor) else tensors[0], opts
                ),
            )
        )
        yield Staging
