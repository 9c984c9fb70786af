"""Counts the bytes of tensors that are in memory, operation by operation."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """Follows storages from the operation that makes them until they are freed, whoever holds them.

    Counted: the storages that it is told of, and those of all results of operations while it is active, whole
    and each once, what autograd saves and buffers of transfers among them. Not counted: scratch memory within
    an operation, and what is no tensor: Python's objects, the transport's shared memory.

    A mode belongs to a thread: a microbatch's thread has to enter it as well.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.total = 0
        self.peak = 0
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()
        self._add(tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._add(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def _add(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if isinstance(tensor, FakeTensor) or tensor.is_meta or storage._cdata in self._sizes:
                continue
            with self._lock:
                self._sizes[storage._cdata] = storage.nbytes()
                self.total += storage.nbytes()
                self.peak = max(self.peak, self.total)
            # torch keeps the Python object of a storage as long as the storage lives.
            weakref.finalize(storage, self._freed, storage._cdata)

    def _freed(self, identity: int) -> None:
        with self._lock:
            self.total -= self._sizes.pop(identity)
