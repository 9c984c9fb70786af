"""Protocols of what takes gradients over, before or after they are averaged."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class Deferral(Protocol):
    """Takes the gradients over at the end of backward, before they are averaged."""

    def hold(self) -> None:
        """Takes the gradients. `deliver()` returns each mean, and the reducer's `wait()` ends the step."""

    def settle(self) -> None:
        """Ends the previous step if it has not ended."""


class Shards(Protocol):
    """Takes the means of which this rank owns pieces."""

    def mean(self, index: int, lent: Tensor | None) -> Tensor:
        """Returns the mean of a gradient that the reducer has just averaged.

        Args:
            index: The parameter's index.
            lent: The tensor that this rank handed over, or None.
        """

    def hand_over(self, index: int) -> None:
        """Is called before the reducer gets a gradient."""

    def handed_over(self, index: int) -> None:
        """Is called in backward when this rank has handed over a gradient."""

    def contribution(self, grad: Tensor) -> Tensor:
        """Returns what this rank adds to the next mean, given a parameter's gradient."""

    def own(self, mean: Tensor) -> list[Tensor]:
        """Returns the pieces of a mean that this rank owns, which may be changed."""

    def own_sizes(self, index: int) -> list[int]:
        """Returns the numbers of elements of these pieces."""

    def agree(self, holds: bool) -> bool:
        """Returns whether something holds on all ranks that have pieces. Collective."""
