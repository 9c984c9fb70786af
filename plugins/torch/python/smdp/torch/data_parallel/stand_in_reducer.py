"""The `reducer` attribute of a DistributedDataParallel that does not use torch's reducer."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class Prepared(Protocol):
    """A model that can be told before a backward to average its gradients."""

    def prepare_for_backward(self) -> None:
        """Makes the next backward average gradients."""


class StandInReducer:
    """The methods of torch's reducer that other libraries (Accelerate, Lightning) call.

    Args:
        model: The model, kept by a weak reference.
    """

    def __init__(self, model: Prepared) -> None:
        self._model = weakref.ref(model)

    def prepare_for_backward(self, outputs: Sequence[Tensor]) -> None:
        """Makes the next backward average gradients."""
        if (model := self._model()) is not None:
            model.prepare_for_backward()

    def _rebuild_buckets(self) -> bool:
        return False  # smdp's reducer rearranges its fusion buffers itself

    def _check_reducer_finalized(self) -> None:
        """Does nothing, because every backward waits for all means."""
