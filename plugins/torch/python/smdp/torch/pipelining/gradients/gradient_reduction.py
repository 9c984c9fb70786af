"""The interface for reducing the gradients of weights that several ranks hold."""

from __future__ import annotations

from typing import Protocol


class GradientReduction(Protocol):
    """Reduces a stage's gradients over the ranks that hold the same weights, while other stages compute."""

    def prepare(self) -> None:
        """Prepares for the backward of a step, on all ranks."""

    def reduce(self, stage: int) -> None:
        """Starts to reduce the gradients of a stage, which are complete."""

    def finish(self) -> None:
        """Waits for all reductions that were started."""

    def abort(self, reason: str) -> None:
        """Aborts the reductions on all ranks, because the step has failed on this one."""
