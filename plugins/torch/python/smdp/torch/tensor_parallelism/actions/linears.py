"""Actions on linear layers."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from smdp.torch.tensor_parallelism.actions.blocks import Block, described, problem_of, ranges_of
from smdp.torch.tensor_parallelism.layers.linear import (
    cut_inputs,
    cut_outputs,
    inputs_of,
    linear_problem,
    outputs_of,
)
from smdp.torch.tensor_parallelism.layers.partial_gradient import sum_gradients
from smdp.torch.tensor_parallelism.layers.vocabulary_head import cut_head
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@dataclass(frozen=True)
class Columns:
    """Divides a linear layer by its outputs.

    Attributes:
        blocks: The outputs. None: one block, whose units are single outputs.
        gathers: Whether the result has the outputs of all ranks.
    """

    blocks: tuple[Block, ...] | None = None
    gathers: bool = False

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        problem = linear_problem(module)
        if problem is not None:
            return problem
        # A joined result would repeat what several ranks hold.
        return problem_of(
            self._blocks(module), outputs_of(module), size, "outputs", may_repeat=not self.gathers
        )

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        blocks = self._blocks(module)
        ranges = ranges_of(blocks, axis.rank, axis.size)
        is_counted = tuple(block.is_first(axis.rank, axis.size) for block in blocks)
        cut_outputs(module, ranges, axis, gathers=self.gathers, is_counted=is_counted)
        if any(block.repeats(axis.size) for block in blocks):
            sum_gradients(module, axis)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        if self.blocks is None:
            what = f"outputs / {size}"
        else:
            what = " | ".join(described(block, size) for block in self.blocks)
        return f"colwise: {what}{', result gathered' if self.gathers else ''}"

    def _blocks(self, module: nn.Module) -> tuple[Block, ...]:
        return self.blocks or (Block(outputs_of(module), outputs_of(module)),)


@dataclass(frozen=True)
class Rows:
    """Divides a linear layer by its inputs.

    Attributes:
        blocks: The inputs. None: one block, whose units are single inputs.
        splits: Whether the layer is called with all inputs.
    """

    blocks: tuple[Block, ...] | None = None
    splits: bool = False

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        problem = linear_problem(module)
        if problem is not None:
            return problem
        return problem_of(self._blocks(module), inputs_of(module), size, "inputs")

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        cut_inputs(module, ranges_of(self._blocks(module), axis.rank, axis.size), axis, splits=self.splits)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        blocks = self.blocks
        what = f"inputs / {size}" if blocks is None else " | ".join(described(each, size) for each in blocks)
        return f"rowwise: {what}, result summed"

    def _blocks(self, module: nn.Module) -> tuple[Block, ...]:
        return self.blocks or (Block(inputs_of(module), inputs_of(module)),)


@dataclass(frozen=True)
class Head:
    """Divides a language model's head by tokens; losses use the slices of the logits."""

    def problem(self, module: nn.Module, size: int) -> str | None:
        """Returns why the module cannot be divided, or None."""
        return linear_problem(module)

    def apply(self, module: nn.Module, axis: TensorAxis) -> None:
        """Divides the module."""
        cut_head(module, axis)

    def describe(self, size: int) -> str:
        """Returns a description for the plan."""
        return f"colwise: tokens / {size}, losses on slices of the logits"
