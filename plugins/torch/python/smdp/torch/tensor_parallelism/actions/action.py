"""The protocol of actions. Checking comes before applying, so an error changes nothing."""

from __future__ import annotations

from typing import Protocol

from torch import nn

from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class Action(Protocol):
    """What happens to one module."""

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why this cannot be done to a module, or None."""

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Does it."""

    def describe(self, size: int) -> str:
        """Returns a description for the plan that users print."""
