"""Embeddings that are divided by vocabulary or by width."""

from __future__ import annotations

from torch import Tensor, nn

from smdp.torch.mesh.slices import Slices, even
from smdp.torch.tensor_parallelism.functions import gather_from_ranks, sum_over_ranks
from smdp.torch.tensor_parallelism.layers.bounds import check_in_vocabulary
from smdp.torch.tensor_parallelism.layers.divided import Divided, cut_parameter, divide
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class VocabularySlice(Divided):
    """An embedding with the rows of some tokens.

    Attributes:
        first: The first token of this rank.
        vocabulary: The number of all tokens.
    """

    first: int
    vocabulary: int
    weight: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Returns the rows of tokens of all ranks, of which each rank looks up its own."""
        check_in_vocabulary("token", input, self.vocabulary)
        if not len(self.weight):
            # This rank has no tokens; the result needs a gradient as on the other ranks.
            empty = self.weight.new_zeros((*input.shape, self.weight.shape[1])) + self.weight.sum()
            return sum_over_ranks(empty, self.tensor_axis)
        own = input - self.first
        is_own = (own >= 0) & (own < self.weight.shape[0])
        found: Tensor = super().forward(own.where(is_own, own.new_zeros(())))
        return sum_over_ranks(found * is_own.unsqueeze(-1), self.tensor_axis)


class WidthSlice(Divided):
    """An embedding with some columns of all rows.

    Attributes:
        gathers_output: Whether the result has the columns of all ranks.
    """

    gathers_output: bool = True

    def forward(self, input: Tensor) -> Tensor:
        """Returns whole rows, of which each rank looks up its columns, or these columns."""
        found: Tensor = super().forward(input)
        return gather_from_ranks(found, -1, self.tensor_axis) if self.gathers_output else found


def cut_vocabulary(module: nn.Embedding, axis: TensorAxis) -> None:
    """Keeps the rows of some tokens. The last ranks have fewer if the vocabulary is not divisible."""
    begin, end = even(module.num_embeddings, axis.rank, axis.size)
    cut_parameter(module.weight, Slices(0, ((begin, end),), tuple(module.weight.shape)), axis)
    padding = module.padding_idx
    if padding is not None:
        # Rows of padding have no gradient; the rank without the row looks up its row 0 for it, times zero.
        module.padding_idx = padding - begin if begin <= padding < end else None
    divide(module, VocabularySlice, axis, first=begin, vocabulary=module.num_embeddings)


def cut_width(module: nn.Embedding, axis: TensorAxis, *, gathers: bool = True) -> None:
    """Keeps some columns of all rows. With `gathers`, lookups return the columns of all ranks."""
    begin, end = even(module.embedding_dim, axis.rank, axis.size)
    cut_parameter(module.weight, Slices(1, ((begin, end),), tuple(module.weight.shape)), axis)
    divide(module, WidthSlice, axis, gathers_output=gathers)
