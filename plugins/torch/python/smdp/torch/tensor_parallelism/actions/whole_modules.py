"""Actions on modules that stay whole."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.layers.divided import divide
from smdp.torch.tensor_parallelism.layers.partial_gradient import sum_gradients
from smdp.torch.tensor_parallelism.layers.split_dropout import SplitRegion
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@dataclass(frozen=True)
class PartialGradient:
    """Keeps a module whole, and sums its gradients, because each rank computes a part of them."""

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        return None

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        sum_gradients(module, axis)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return "replicated, gradients summed"


@dataclass(frozen=True)
class Region:
    """Adjusts a module around divided layers: counts of heads that its code reads, and its dropout.

    Attributes:
        attributes: Attributes of the module, with their new values.
        config: Entries of the module's configuration, with their new values. The module gets a copy.
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        return None

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        for name, value in self.attributes.items():
            setattr(module, name, value)
        if self.config:
            own: Any = copy.copy(module.config)
            for name, value in self.config.items():
                setattr(own, name, value)
            module.config = own
        divide(module, SplitRegion, axis)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        changed = [f"{name} = {value}" for name, value in (self.attributes | self.config).items()]
        return ", ".join(changed) or "dropout on slices"
