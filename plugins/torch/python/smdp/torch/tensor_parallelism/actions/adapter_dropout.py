"""The action on the dropout of an adapter."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from smdp.torch.tensor_parallelism.layers.divided import divide
from smdp.torch.tensor_parallelism.layers.split_dropout import OwnDropout
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@dataclass(frozen=True)
class AdapterDropout:
    """Makes dropout on the input of an adapter independent of the code around it.

    Attributes:
        is_split: Whether the input is a slice of the last dimension.
    """

    is_split: bool

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        return None

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        divide(module, OwnDropout, axis, has_slices=self.is_split)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return f"dropout on {'slices' if self.is_split else 'whole inputs'}"
