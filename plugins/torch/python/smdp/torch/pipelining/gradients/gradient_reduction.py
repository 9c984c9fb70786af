"""What makes one gradient of those that several ranks have of a weight."""

from __future__ import annotations

from typing import Protocol


class GradientReduction(Protocol):
    """Reduces gradients of stages over the ranks that hold the same weights, while other stages compute."""

    def prepare(self) -> None:
        """Gets ready for the backward of a step, on all ranks."""

    def reduce(self, stage: int) -> None:
        """Begins to reduce the gradients of a stage, which are complete."""

    def finish(self) -> None:
        """Waits for all that was begun."""

    def abort(self, reason: str) -> None:
        """Ends it on all ranks, because the step has failed on this one."""
