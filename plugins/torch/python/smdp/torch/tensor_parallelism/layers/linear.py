"""Linear layers that are divided by their outputs or by their inputs.

Both kinds work for torch's Linear, whose weight is (outputs, inputs), and for the Conv1D of GPT-2, whose
weight is (inputs, outputs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.mesh.slices import Slices
from smdp.torch.tensor_parallelism.functions import (
    gather_from_ranks,
    split_over_ranks,
    sum_and_scatter,
    sum_over_ranks,
)
from smdp.torch.tensor_parallelism.layers.divided import Divided, cut_parameter, divide
from smdp.torch.tensor_parallelism.layers.sequence import (
    SequenceSlices,
    gathered_input,
    is_gathered,
    is_whole,
    linear_of_gathered,
)
from smdp.torch.tensor_parallelism.layers.split_dropout import mark_split
from smdp.torch.tensor_parallelism.overlapped_linear import can_overlap, overlapped_linear
from smdp.torch.tensor_parallelism.shared_input import shared_input
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

Ranges = Sequence[tuple[int, int]]


class Column(Divided):
    """A linear layer with a slice of the outputs.

    Attributes:
        gathers_output: Whether the result has the outputs of all ranks.
        takes_part: Whether the input's gradient is summed elsewhere, because other code has copied the input
            to the ranks.
        sequence: Whether the input is a slice of the sequence, or has been gathered from one.
        gathers_input: Whether the input is a slice that the layer gathers.
    """

    gathers_output: bool = False
    takes_part: bool = False
    sequence: SequenceSlices | None = None
    gathers_input: bool = False

    def forward(self, input: Tensor) -> Tensor:
        """Returns this rank's outputs, or all of them."""
        if self.sequence is not None and self.sequence.is_on:
            found = self._of_slice(input)
        elif self.takes_part:
            found = super().forward(input)
        elif can_overlap(input, _weight(self), self.tensor_axis):
            found = overlapped_linear(input, _inputs_last(self), cast("Any", self).bias, self.tensor_axis)
        else:
            found = super().forward(shared_input(input, self.tensor_axis))
        mark_split(not self.gathers_output, output=found)
        return gather_from_ranks(found, -1, self.tensor_axis) if self.gathers_output else found

    def _of_slice(self, tensor: Tensor) -> Tensor:
        if tensor.ndim != 3:
            raise RuntimeError(
                "[smdp] sequence_parallel: a layer that is divided by outputs must be called with (batch,"
                f" sequence, width), and got a shape of {tuple(tensor.shape)}. Use sequence_parallel=False."
            )
        if self.gathers_input:
            tensor = gathered_input(tensor, self.tensor_axis)
        elif is_whole(tensor):
            found: Tensor = super().forward(shared_input(tensor, self.tensor_axis))
            return found
        elif not is_gathered(tensor):
            raise RuntimeError(
                "[smdp] sequence_parallel: a layer that is divided by outputs must be called with an argument"
                " of the module around it, and was called with another tensor. Use sequence_parallel=False."
            )
        return linear_of_gathered(tensor, _inputs_last(self), cast("Any", self).bias)


class Row(Divided):
    """A linear layer with a slice of the inputs. The bias is whole, and is added once.

    Attributes:
        splits_input: Whether the input has all values, of which this rank uses its slice.
        sequence: Whether the output is a slice of the sequence.
    """

    splits_input: bool = False
    sequence: SequenceSlices | None = None
    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        """Returns the outputs, which are the same on all ranks, or this rank's slice of the sequence."""
        axis = self.tensor_axis
        if self.splits_input:
            input = split_over_ranks(input, -1, axis)
        is_sequence = self.sequence is not None and self.sequence.is_on
        parts = F.linear(input, _inputs_last(self))
        found = sum_and_scatter(parts, 1, axis) if is_sequence else sum_over_ranks(parts, axis)
        mark_split(False, is_sequence=is_sequence)
        # Autocast converts the bias of a whole layer, too.
        return found if self.bias is None else found + self.bias.to(found.dtype)


def is_linear(module: nn.Module) -> bool:
    """Returns whether a module is a linear layer that can be divided: torch's Linear or a Conv1D."""
    name = type(module).__name__
    if "forward" in module.__dict__:
        return False  # the divided layer would not run
    if isinstance(module, nn.Linear):
        # Falcon's class has a forward of its own, which only avoids fused kernels.
        return name == "FalconLinear" or type(module).forward is nn.Linear.forward
    return name == "Conv1D" and hasattr(module, "nf")


def linear_problem(module: nn.Module) -> str | None:
    """Returns why a module is not a linear layer that can be divided, or None if it is one."""
    kind = type(module).__name__
    if not is_linear(module):
        is_changed = isinstance(module, nn.Linear)
        return f"a {kind} {'has another forward() than Linear' if is_changed else 'is not a linear layer'}"
    if kind == "NonDynamicallyQuantizableLinear":
        return "the attention around it reads its weight without calling it"
    weight = module._parameters.get("weight")
    if weight is None:
        return "its weight is computed from other parameters"
    if type(weight) is not nn.Parameter:
        return f"its weight is a {type(weight).__name__}, not a plain parameter"
    return None


def outputs_of(module: nn.Module) -> int:
    """Returns the number of outputs of a linear layer."""
    return int(_weight(module).shape[_output_dim(module)])


def inputs_of(module: nn.Module) -> int:
    """Returns the number of inputs of a linear layer."""
    return int(_weight(module).shape[1 - _output_dim(module)])


def cut_outputs(
    module: nn.Module,
    ranges: Ranges,
    axis: TensorAxis,
    *,
    gathers: bool = False,
    is_counted: bool | tuple[bool, ...] = True,
) -> None:
    """Keeps some outputs of a linear layer.

    Args:
        module: The layer.
        ranges: The outputs of this rank.
        axis: The ranks.
        gathers: Whether the result has the outputs of all ranks.
        is_counted: Whether no other rank counts the same outputs in norms, for all ranges or for each.
    """
    changed: Any = module
    weight, bias = _weight(module), changed.bias
    slices = Slices(_output_dim(module), tuple(ranges), tuple(weight.shape))
    cut_parameter(weight, slices, axis, is_counted=is_counted)
    if bias is not None:
        cut_parameter(bias, Slices(0, tuple(ranges), tuple(bias.shape)), axis, is_counted=is_counted)
    setattr(changed, "out_features" if isinstance(module, nn.Linear) else "nf", slices.length)
    divide(module, Column, axis, gathers_output=gathers)


def cut_inputs(module: nn.Module, ranges: Ranges, axis: TensorAxis, *, splits: bool = False) -> None:
    """Keeps some inputs of a linear layer.

    Args:
        module: The layer.
        ranges: The inputs of this rank.
        axis: The ranks.
        splits: Whether the layer is called with all inputs.
    """
    weight = _weight(module)
    slices = Slices(1 - _output_dim(module), tuple(ranges), tuple(weight.shape))
    cut_parameter(weight, slices, axis)
    if isinstance(module, nn.Linear):
        module.in_features = slices.length
    divide(module, Row, axis, splits_input=splits)


def _inputs_last(module: nn.Module) -> Tensor:
    weight = _weight(module)
    return weight if isinstance(module, nn.Linear) else weight.t()


def _weight(module: Any) -> Tensor:
    return cast("Tensor", module.weight)


def _output_dim(module: nn.Module) -> int:
    return 0 if isinstance(module, nn.Linear) else 1
