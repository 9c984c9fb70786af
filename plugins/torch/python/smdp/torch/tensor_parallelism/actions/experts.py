"""The action on the experts of a mixture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from smdp.torch.mesh.slices import Slices, blocks
from smdp.torch.tensor_parallelism.layers.divided import cut_parameter, divide
from smdp.torch.tensor_parallelism.layers.experts import ExpertSlices
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

# Bytes, for torch.nn.functional.grouped_mm.
_ALIGNMENT = 16


def _is_grouped(module: Any) -> bool:
    return getattr(getattr(module, "config", None), "_experts_implementation", None) == "grouped_mm"


@dataclass(frozen=True)
class PackedDim:
    """The dimension of a parameter that is divided.

    Attributes:
        dim: The dimension, counted from the last one: -1 or -2.
        count: The number of equal blocks, each of which is divided by itself.
    """

    dim: int
    count: int = 1


@dataclass(frozen=True)
class Experts:
    """Divides each expert by the width between its two linear layers.

    Attributes:
        parameters: The dimensions, by the name of the parameter. Each parameter is (experts, ...).
    """

    parameters: dict[str, PackedDim]

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        found = dict(module.named_parameters())
        if found.keys() != self.parameters.keys():
            missing = ", ".join(sorted(found.keys() ^ self.parameters.keys()))
            return f"the plan and the experts differ in their parameters: {missing}"
        if getattr(module, "has_post_expert_norm", False):
            return "a norm follows each expert, and it needs whole outputs"
        for name, packed in self.parameters.items():
            length = found[name].shape[packed.dim]
            width, rest = divmod(length // packed.count, size)
            if rest:
                return f"a width of {length // packed.count} is not a multiple of {size}"
            if _is_grouped(module) and width * found[name].element_size() % _ALIGNMENT:
                return (
                    f"torch's grouped product needs rows of a multiple of {_ALIGNMENT} bytes, and a rank's"
                    f" would be {width} values of {found[name].element_size()} bytes. There is no such limit"
                    ' after model.set_experts_implementation("eager")'
                )
        return None

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        changed: Any = module
        for name, packed in self.parameters.items():
            parameter = module.get_parameter(name)
            length = parameter.shape[packed.dim]
            ranges = blocks([length // packed.count] * packed.count, axis.rank, axis.size)
            slices = Slices(packed.dim % parameter.ndim, ranges, tuple(parameter.shape))
            cut_parameter(parameter, slices, axis)
        for name in ("intermediate_dim", "intermediate_size"):
            if isinstance(getattr(module, name, None), int):
                setattr(changed, name, getattr(changed, name) // axis.size)
        divide(module, ExpertSlices, axis)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return f"experts: width / {size}, result summed"
