"""Measures what operations between units keep for backward, such as a dropout's mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

_MARK = "_smdp_counted"


class GlueActivations(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes of storages that autograd would keep, without keeping them, while a model's glue runs.

    Inputs and outputs of a unit are counted with the unit.

    Args:
        resident: Storages, by `_cdata`, that are in memory in any case.
    """

    def __init__(self, resident: Mapping[int, torch.UntypedStorage]) -> None:
        super().__init__(self._pack, lambda kept: kept)
        self.is_paused = False
        self.call = 0
        self._resident = resident
        self._bytes: Counter[int] = Counter()

    def bytes_after(self, call: int) -> int:
        """Returns the bytes kept between the start of a unit's call and the start of the next one."""
        return self._bytes[call]

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Excludes the storages of some tensors from now on."""
        for tensor in tensors:
            setattr(tensor.untyped_storage(), _MARK, self)

    def with_gradient(self, tensor: Tensor) -> Tensor:
        """Returns a unit's output with a gradient; a clone, because glue may change it in place."""
        with torch.enable_grad():
            return tensor.detach().requires_grad_().clone()

    def _pack(self, tensor: Tensor) -> Any:
        if self.is_paused:
            return tensor
        storage = tensor.untyped_storage()
        if getattr(storage, _MARK, None) is not self and storage._cdata not in self._resident:
            self._bytes[self.call] += storage.nbytes()
            self.leave_out([tensor])
        return None
