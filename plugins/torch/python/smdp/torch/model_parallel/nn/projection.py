"""The linear layers inside of distributed transformers, in both layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.model_parallel.nn.layout import Layout

Kind: TypeAlias = Literal["column", "row"]


class Projection(DistributedModule):
    """A linear layer inside of a distributed transformer.

    If activations are divided by width, each rank has a slice of the inputs, and gets the sums of a slice of
    the outputs. Otherwise each rank has a slice of the outputs ("column", whose input is whole and whose
    output is divided) or of the inputs ("row", the reverse).

    Args:
        inputs: Number of inputs over all ranks.
        outputs: Number of outputs over all ranks.
        kind: Which side is divided if activations are whole.
        layout: The layout of activations.
        bias: Whether there is a bias.
        deviation: Standard deviation of normal initial values; the bias is 0. None: torch's initial values.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kind: Kind,
        layout: Layout,
        *,
        bias: bool = True,
        deviation: float | None = None,
    ) -> None:
        super().__init__()
        whole = nn.Linear(inputs, outputs, bias)
        with torch.no_grad():
            if deviation is not None:
                whole.weight.normal_(0.0, deviation)
            if deviation is not None and whole.bias is not None:
                whole.bias.zero_()
        self.kind, self.layout = kind, layout
        self.weight, self.bias = whole.weight, whole.bias
        is_by_outputs = kind == "column" and not layout.is_split
        with torch.no_grad():
            self.keep_slice("weight", 0 if is_by_outputs else 1)
            if layout.is_split or kind == "column":
                self.keep_slice("bias", 0)
            else:
                self.keep_whole("bias")

    def forward(self, input: Tensor) -> Tensor:
        """Returns the outputs in the layout of the kind.

        Args:
            input: (samples of all ranks, ..., inputs). A "column" gets a whole input that `copied()` has
                returned.
        """
        if self.layout.is_split:
            return with_bias(self.layout.scattered(F.linear(input, self.weight)), self.bias)
        if self.kind == "column":
            return F.linear(input, self.weight, self.bias)
        return with_bias(self.layout.summed(F.linear(input, self.weight)), self.bias)


def project(projections: Sequence[Projection], input: Tensor) -> list[Tensor]:
    """Returns the outputs of several projections with equal sizes of one input, with one message."""
    layout = projections[0].layout
    if not layout.is_split or layout.size == 1:
        copied = layout.copied(input)
        return [each(copied) for each in projections]
    sums = layout.scattered(torch.stack([F.linear(input, each.weight) for each in projections]))
    return [with_bias(found, each.bias) for found, each in zip(sums.unbind(0), projections, strict=True)]


def with_bias(found: Tensor, bias: Tensor | None) -> Tensor:
    """Returns outputs plus a bias, if there is one."""
    return found if bias is None else found + bias.to(found.dtype)
