"""The projection of latent attention to a compressed key, and to a rotary key that all heads share."""

from __future__ import annotations

import torch
from torch import Tensor

from smdp.torch.tensor_parallelism.functions import copy_to_ranks
from smdp.torch.tensor_parallelism.layers.divided import Divided


class LatentProjection(Divided):
    """A whole linear layer whose last outputs go to the heads of each rank without another layer.

    The other outputs go through a column-parallel layer, which sums their gradients.

    Attributes:
        shared_outputs: The number of these last outputs.
    """

    shared_outputs: int

    def forward(self, tensor: Tensor) -> Tensor:
        """Returns all outputs."""
        found: Tensor = super().forward(tensor)
        rest, shared = found.split([found.shape[-1] - self.shared_outputs, self.shared_outputs], -1)
        return torch.cat([rest, copy_to_ranks(shared, self.tensor_axis)], -1)
