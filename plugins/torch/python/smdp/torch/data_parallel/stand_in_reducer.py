"""What others find as `reducer` on a DistributedDataParallel that has none of torch's."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Prepared(Protocol):
    """A model that is told before a backward that its gradients are to be averaged."""

    def prepare_for_backward(self) -> None:
        """Say so."""


class StandInReducer:
    """Those methods of torch's reducer that other libraries call (Accelerate, Lightning).

    Args:
        model: Kept by a weak reference.
    """

    def __init__(self, model: Prepared) -> None:
        self._model = weakref.ref(model)

    def prepare_for_backward(self, outputs: Sequence[Tensor]) -> None:
        """Have the next backward average gradients."""
        if (model := self._model()) is not None:
            model.prepare_for_backward()

    def _rebuild_buckets(self) -> bool:
        return False  # smdp's own follow what backward did

    def _check_reducer_finalized(self) -> None:
        """Every backward ends with all means."""
