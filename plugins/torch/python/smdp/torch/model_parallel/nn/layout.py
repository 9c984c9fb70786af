"""The two layouts in which the ranks of a tensor-parallel group share their samples.

Outside of distributed modules, each rank has its own samples, (batch, ..., width). Inside, all ranks work on
the samples of all of them: with `optimize` = "memory" each rank has a slice of the width, with "speed" each
rank has the whole width. With `prescaled_batch`, the ranks have the same samples outside, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdp.torch.model_parallel.job.state import state
from smdp.torch.tensor_parallelism.collectives import gather
from smdp.torch.tensor_parallelism.functions import (
    copy_to_ranks,
    exchange,
    gather_from_ranks,
    split_over_ranks,
    sum_and_scatter,
    sum_over_ranks,
)
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


class Layout:
    """Moves tensors between the layouts of the inside and the outside.

    Inside, gradients are those of the mean of the ranks' losses, as if one process had all samples. On the
    way in and out they are scaled accordingly.

    Args:
        axis: The ranks of the tensor-parallel group.
        is_split: Whether each rank has a slice of the width inside.
        is_prescaled: Whether the ranks have the same samples outside.
    """

    def __init__(self, axis: TensorAxis, *, is_split: bool, is_prescaled: bool) -> None:
        self.axis = axis
        self.is_split = is_split
        self.is_prescaled = is_prescaled

    @classmethod
    def of_job(cls, *, is_split: bool | None = None) -> Layout:
        """Returns the layout that the job's configuration asks for.

        Args:
            is_split: Whether each rank has a slice of the width inside. Default: as `optimize` says.

        Raises:
            ValueError: smp.init() has not been called.
        """
        configuration = state.cfg
        if is_split is None:
            is_split = configuration.optimize == "memory"
        return cls(state.running.axis, is_split=is_split, is_prescaled=configuration.prescaled_batch)

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.axis.size

    def enter(self, tensor: Tensor) -> Tensor:
        """Returns the samples of all ranks, given this rank's samples."""
        if self.size == 1:
            return tensor
        if self.is_prescaled:
            return split_over_ranks(tensor, -1, self.axis) if self.is_split else tensor
        tensor = scale_gradient(tensor, self.size)
        if self.is_split:
            return exchange(tensor, -1, 0, self.axis)
        return gather_from_ranks(tensor, 0, self.axis)

    def own_samples(self, tensor: Tensor) -> int:
        """Returns the number of this rank's samples, given those of all ranks."""
        samples: int = tensor.shape[0]
        return samples if self.is_prescaled else samples // self.size

    def leave(self, tensor: Tensor) -> Tensor:
        """Returns this rank's samples, given those of all ranks."""
        if self.size == 1:
            return tensor
        if self.is_prescaled:
            return gather_from_ranks(tensor, -1, self.axis) if self.is_split else tensor
        if self.is_split:
            tensor = exchange(tensor, 0, -1, self.axis)
        else:
            tensor = split_over_ranks(tensor, 0, self.axis)
        return scale_gradient(tensor, 1 / self.size)

    def sum_and_leave(self, parts: Tensor) -> Tensor:
        """Returns this rank's samples of a sum, given each rank's part of the sum for all samples."""
        if self.size == 1:
            return parts
        if self.is_prescaled:
            return sum_over_ranks(parts, self.axis)
        return scale_gradient(sum_and_scatter(parts, 0, self.axis), 1 / self.size)

    def enter_whole(self, tensor: Tensor) -> Tensor:
        """Returns the samples of all ranks of a tensor without gradient, such as tokens or a mask."""
        if self.size == 1 or self.is_prescaled:
            return tensor
        return gather(tensor.detach(), 0, self.size, self.axis.number)

    def copied(self, tensor: Tensor) -> Tensor:
        """Returns a whole tensor for use by code that differs between ranks; backward sums gradients."""
        return tensor if self.size == 1 else copy_to_ranks(tensor, self.axis)

    def summed(self, parts: Tensor) -> Tensor:
        """Returns the sum of the ranks' parts."""
        return parts if self.size == 1 else sum_over_ranks(parts, self.axis)

    def scattered(self, parts: Tensor) -> Tensor:
        """Returns this rank's slice of the width of the sum of the ranks' parts."""
        return parts if self.size == 1 else sum_and_scatter(parts, -1, self.axis)

    def joined(self, tensor: Tensor) -> Tensor:
        """Returns the whole width, given slices of it."""
        return tensor if self.size == 1 else gather_from_ranks(tensor, -1, self.axis)

    def sliced(self, tensor: Tensor) -> Tensor:
        """Returns this rank's slice of a width that all ranks have."""
        return tensor if self.size == 1 else split_over_ranks(tensor, -1, self.axis)


def scale_gradient(tensor: Tensor, factor: float) -> Tensor:
    """Returns a tensor whose gradient is multiplied by a factor."""
    if factor == 1 or not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor
    return _Scale.apply(tensor, factor)


class _Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return gradient * ctx.factor, None
