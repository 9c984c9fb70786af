"""An action on a module that holds no divided parameters itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@dataclass(frozen=True)
class Attributes:
    """Changes attributes that a module's code reads, such as a number of heads.

    Attributes:
        values: The new values.
    """

    values: Mapping[str, Any]

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why this cannot be done, or None."""
        return None

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Changes the attributes."""
        for name, value in self.values.items():
            setattr(module, name, value)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return ", ".join(f"{name} = {value}" for name, value in self.values.items())
