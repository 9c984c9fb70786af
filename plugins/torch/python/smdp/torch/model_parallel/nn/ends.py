"""The embeddings and the head of a distributed language model, which lead into and out of its layout."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.model_parallel.nn.embedding import DistributedEmbedding
from smdp.torch.model_parallel.nn.layout import Layout


class EnteringEmbedding(DistributedEmbedding):
    """An embedding that returns the samples of all ranks.

    Args:
        rows: Number of rows.
        width: Number of columns over all ranks.
        layout: The layout of the result.
        deviation: Standard deviation of the initial values.
    """

    def __init__(self, rows: int, width: int, layout: Layout, deviation: float) -> None:
        super().__init__(rows, width, initializer_range=deviation)
        self.layout = layout

    def forward(self, input: Tensor, *, is_same: bool = False) -> Tensor:
        """Returns rows in the layout of the inside.

        Args:
            input: Tokens of this rank's samples.
            is_same: Whether they are the same for all samples.
        """
        found = self.columns(input if is_same else self.layout.enter_whole(input))
        return found if self.layout.is_split else self.layout.joined(found)


class WidthHead(DistributedModule):
    """A head that is divided by width, so that each rank gets all logits of its samples.

    Args:
        inputs: Number of inputs over all ranks.
        outputs: Number of logits.
        layout: The layout of the input.
        deviation: Standard deviation of the initial weight.
        weight: The weight of an embedding, which the head uses. None: it has its own.
        has_bias: Whether there is a bias, which is whole.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        outputs: int,
        layout: Layout,
        deviation: float,
        weight: nn.Parameter | None,
        *,
        has_bias: bool,
    ) -> None:
        super().__init__()
        self.layout = layout
        self.weight = weight if weight is not None else nn.Parameter(_normal(outputs, inputs, deviation))
        self.bias = nn.Parameter(torch.zeros(outputs)) if has_bias else None
        if weight is None:
            with torch.no_grad():
                self.keep_slice("weight", 1)

    def forward(self, hidden: Tensor) -> Tensor:
        """Returns the logits of this rank's samples."""
        if not self.layout.is_split:
            hidden = self.layout.sliced(hidden)
        found = self.layout.sum_and_leave(F.linear(hidden, self.weight))
        return found if self.bias is None else found + self.bias


def _normal(rows: int, columns: int, deviation: float) -> Tensor:
    return torch.empty(rows, columns).normal_(0.0, deviation)
