"""Experts of a mixture, of each of which every rank holds a slice."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from smdp.torch.tensor_parallelism.functions import copy_to_ranks, sum_over_ranks
from smdp.torch.tensor_parallelism.layers.divided import Divided
from smdp.torch.tensor_parallelism.shared_input import shared_input


class ExpertSlices(Divided):
    """All experts of a layer, with a slice of the width between their two linear layers.

    The router is whole. Each rank's outputs are a part of the sum, so the gradients of the routing weights
    are parts too, and are summed.
    """

    def forward(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Returns the outputs of all experts, which are the same on all ranks.

        Args:
            hidden: The inputs, (tokens, width).
            args: What else the module takes, such as the experts of each token and their weights.
            kwargs: The same, by name.
        """
        axis = self.tensor_axis

        def copied(each: Any) -> Any:
            return copy_to_ranks(each, axis) if isinstance(each, Tensor) else each

        others = {name: copied(each) for name, each in kwargs.items()}
        found = super().forward(shared_input(hidden, axis), *map(copied, args), **others)
        return sum_over_ranks(found, axis)
