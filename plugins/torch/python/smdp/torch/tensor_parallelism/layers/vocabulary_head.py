"""A language model's head that is divided by vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.slices import even
from smdp.torch.tensor_parallelism.layers.divided import divide
from smdp.torch.tensor_parallelism.layers.linear import Column, cut_outputs, outputs_of
from smdp.torch.tensor_parallelism.layers.split_logits import SplitLogits, gathered_logits
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class VocabularyHead(Column):
    """A head with the logits of some tokens.

    In training it returns SplitLogits. Where gradients are disabled, it returns the logits of all tokens, so
    that the ranks may use them in different ways. So it does in a compiled model, because torch.compile does
    not trace SplitLogits.

    Attributes:
        vocabulary: The number of all tokens.
    """

    vocabulary: int
    method_with_weights = "part_of_logits"

    def forward(self, input: Tensor) -> Tensor:
        """Returns the logits of all tokens, gathered if gradients are disabled."""
        part = self.part_of_logits(input)
        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return gathered_logits(part, self.tensor_axis, self.vocabulary)
        return SplitLogits(part, self.tensor_axis, self.vocabulary)

    def part_of_logits(self, tensor: Tensor) -> Tensor:
        """Returns the logits of this rank's tokens."""
        return super().forward(tensor)


def cut_head(module: nn.Module, axis: TensorAxis) -> None:
    """Keeps the logits of some tokens."""
    weight: Any = module.weight
    # The weight of a tied head has been cut together with the embedding.
    cut = cut_of(weight)
    whole = outputs_of(module) if cut is None or cut.slices is None else cut.slices.shape[0]
    cut_outputs(module, [even(whole, axis.rank, axis.size)], axis)
    divide(module, VocabularyHead, axis, vocabulary=whole)
