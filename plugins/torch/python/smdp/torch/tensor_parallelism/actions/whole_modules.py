"""Actions on modules that stay whole."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from smdp.torch.mesh.slices import Slices, even
from smdp.torch.tensor_parallelism.layers.divided import cut_parameter, divide
from smdp.torch.tensor_parallelism.layers.head_inputs import divide_head_inputs
from smdp.torch.tensor_parallelism.layers.latent_projection import LatentProjection
from smdp.torch.tensor_parallelism.layers.linear import is_linear
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
class LatentOutputs:
    """Keeps a linear layer whole, and sums the gradients of its last outputs, which all heads share.

    Attributes:
        shared: The number of these outputs.
    """

    shared: int

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        return None if is_linear(module) else f"a {type(module).__name__} is not a linear layer"

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        divide(module, LatentProjection, axis, shared_outputs=self.shared)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return f"replicated, gradients of {self.shared} outputs summed"


@dataclass(frozen=True)
class Region:
    """Adjusts a module around divided layers: counts of heads that its code reads, and its dropout.

    Attributes:
        attributes: Attributes of the module, with their new values.
        config: Entries of the module's configuration, with their new values. The module gets a copy.
        parameters: Parameters of the module itself that are divided by their last dimension, such as sinks.
        head_inputs: Keyword arguments of the module that have all heads.
        heads: The number of heads of all ranks, if there are `head_inputs`.
        joined_heads: The number of a rank's heads, if attention weights are (batch x heads, queries, keys).
    """

    attributes: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    parameters: tuple[str, ...] = ()
    head_inputs: tuple[str, ...] = ()
    heads: int = 0
    joined_heads: int = 0

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        for name in self.parameters:
            length = module.get_parameter(name).shape[-1]
            if length % size:
                return f"parameter {name!r} has {length} values, which is not a multiple of {size}"
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
        for name in self.parameters:
            parameter = module.get_parameter(name)
            range_ = even(parameter.shape[-1], axis.rank, axis.size)
            slices = Slices(parameter.ndim - 1, (range_,), tuple(parameter.shape))
            cut_parameter(parameter, slices, axis)
        divide(module, SplitRegion, axis, joined_heads=self.joined_heads)
        if self.head_inputs:
            divide_head_inputs(module, self.head_inputs, self.heads, axis)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        changed = [f"{name} = {value}" for name, value in (self.attributes | self.config).items()]
        changed += [f"{name} / {size}" for name in (*self.parameters, *self.head_inputs)]
        return ", ".join(changed) or "dropout on slices"
