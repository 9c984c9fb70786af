"""A linear layer whose input gradient is summed over the ranks while its weight gradient is computed.

Backward runs nodes in the opposite order of their making, so the nodes below are made in the order wait,
weight, start: once all layers of the input have added their gradients, the sum starts; then the weight
gradient of the first layer is computed; and then the sum is awaited.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smdp.torch.tensor_parallelism.collectives import start_sum_, wait_sum_
from smdp.torch.tensor_parallelism.functions import sum_over_ranks
from smdp.torch.tensor_parallelism.shared_input import share_copy, shared_copy
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def can_overlap(tensor: Tensor, weight: Tensor, axis: TensorAxis) -> bool:
    """Returns whether the sum of an input's gradient is worth hiding.

    Inside a host, a sum takes less time than a second thread takes from the matrix product.
    """
    return (
        not torch.compiler.is_compiling()
        and axis.is_across_hosts
        and tensor.ndim > 1
        and tensor.requires_grad
        and weight.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled(tensor.device.type)
    )


def overlapped_linear(tensor: Tensor, weight: Tensor, bias: Tensor | None, axis: TensorAxis) -> Tensor:
    """Returns a linear layer's output. Layers that are called later with the same input share its copy.

    These layers save the same for backward as the first one, because a checkpoint that calls the first one
    again finds the copy that it has made before.

    Args:
        tensor: The input, which all ranks hold, (..., inputs).
        weight: This rank's slice, (outputs, inputs).
        bias: This rank's slice, (outputs).
        axis: The ranks.
    """
    earlier = shared_copy(tensor, axis)
    if earlier is not None:
        return _Linear.apply(earlier, weight, bias, None)
    factors: list[Tensor] = []
    waited = _Wait.apply(tensor, axis)
    late = _Weight.apply(weight, factors)
    copy = _Start.apply(waited, axis)
    share_copy(tensor, copy, axis)
    found: Tensor = _Linear.apply(copy, late, bias, factors)
    return found


class _Wait(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis) -> Tensor:
        ctx.axis = axis
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        if not torch.is_grad_enabled():
            wait_sum_(gradients[0], ctx.axis.number)
        return gradients[0], None


class _Weight(torch.autograd.Function):
    """Computes the weight's gradient from the factors that the layer's backward has left.

    A second derivative also comes from the layer itself.
    """

    @staticmethod
    def forward(ctx: Any, weight: Tensor, factors: list[Tensor]) -> Tensor:
        ctx.factors = factors
        ctx.set_materialize_grads(False)
        return weight.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        (found,) = gradients
        if ctx.factors:
            own = _of_weight(*ctx.factors)
            ctx.factors.clear()
            found = own if found is None else found + own
        return found, None


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis) -> Tensor:
        ctx.axis = axis
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0].clone(memory_format=torch.contiguous_format)
        if torch.is_grad_enabled():  # create_graph=True
            return sum_over_ranks(gradient, ctx.axis), None
        start_sum_(gradient, ctx.axis.number)
        return gradient, None


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, weight: Tensor, bias: Tensor | None, factors: list[Tensor] | None
    ) -> Tensor:
        ctx.save_for_backward(tensor, weight)
        ctx.factors = factors
        return F.linear(tensor, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        tensor, weight = ctx.saved_tensors
        (gradient,) = gradients
        of_weight = None
        if ctx.factors is None or torch.is_grad_enabled():
            of_weight = _of_weight(gradient, tensor)
        else:
            ctx.factors[:] = [gradient, tensor]
        of_bias = gradient.flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        return gradient @ weight, of_weight, of_bias, None


def _of_weight(gradient: Tensor, tensor: Tensor) -> Tensor:
    return gradient.flatten(0, -2).t() @ tensor.flatten(0, -2)
