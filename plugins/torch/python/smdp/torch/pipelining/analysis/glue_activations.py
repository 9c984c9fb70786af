"""What operations between units keep for backward: a loss its log-probabilities, a dropout its mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

_MARK = "_smdp_counted"


class GlueActivations(torch.autograd.graph.saved_tensors_hooks):
    """Counts the bytes of storages that autograd would keep, and keeps none, while a model's glue runs.

    What a unit takes or gives is counted with the unit, if anything keeps it.

    Args:
        resident: Storages, by `_cdata`, that are in memory anyway.
    """

    def __init__(self, resident: Mapping[int, torch.UntypedStorage]) -> None:
        super().__init__(self._pack, lambda kept: kept)
        self.is_paused = False
        self.call = 0
        self._resident = resident
        self._bytes: Counter[int] = Counter()

    def bytes_after(self, call: int) -> int:
        """Give what is kept between the beginning of a unit's call and that of the next."""
        return self._bytes[call]

    def leave_out(self, tensors: Iterable[Tensor]) -> None:
        """Count these storages no more."""
        for tensor in tensors:
            setattr(tensor.untyped_storage(), _MARK, self)

    def with_gradient(self, tensor: Tensor) -> Tensor:
        """Give a unit's output as autograd knows it; no leaf and no view of one, as glue may change it."""
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
