"""`smp.nn.DistributedLinear`: a linear layer that is divided by its inputs."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.model_parallel.nn.distributed_module import DistributedModule, check_divisible
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layout import Layout


class DistributedLinear(DistributedModule):
    """Replaces torch.nn.Linear: each rank of the tensor-parallel group has a slice of the inputs.

    Each rank multiplies its slice of the samples of all ranks, and gets the sums for its own samples. The
    bias is whole.

    Args:
        in_features: Number of inputs over all ranks.
        out_features: Number of outputs.
        bias: Whether there is a bias.
        device: The device of the parameters. None: torch's default.
        dtype: The dtype of the parameters. None: torch's default.

    Raises:
        ValueError: `in_features` is not divisible by `tensor_parallel_degree`.
    """

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_divisible("in_features", in_features, self.tensor_axis.size)
        with same_random_numbers(self.tensor_axis):
            self._take(nn.Linear(in_features, out_features, bias, device, dtype))

    @classmethod
    def of(cls, linear: nn.Module) -> DistributedLinear:
        """Returns a layer with this rank's slice of a linear layer, whose parameters it takes."""
        found = cls.__new__(cls)
        DistributedModule.__init__(found)
        found._take(cast("nn.Linear", linear))
        return found

    def _take(self, linear: nn.Linear) -> None:
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.layout = Layout.of_job(is_split=True)
        with torch.no_grad():
            self.keep_slice("weight", 1)

    def forward(self, input: Tensor) -> Tensor:
        """Returns the outputs for this rank's samples.

        Args:
            input: (batch, ..., in_features). All ranks of the group have the same shape.
        """
        if input.ndim == 1:
            return cast("Tensor", self(input.unsqueeze(0))).squeeze(0)
        found = self.layout.sum_and_leave(F.linear(self.layout.enter(input), self.weight))
        return found if self.bias is None else found + self.bias

    def extra_repr(self) -> str:
        """Returns the sizes of the whole layer."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None},"
            f" {super().extra_repr()}".rstrip(", ")
        )
