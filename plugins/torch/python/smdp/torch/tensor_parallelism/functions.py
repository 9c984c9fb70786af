"""Differentiable collectives of tensor parallelism, in pairs whose backward is the other one's forward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdp.torch.tensor_parallelism.collectives import exchange as exchange_slices
from smdp.torch.tensor_parallelism.collectives import gather, scatter_sum, sum_, summed
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def copy_to_ranks(tensor: Tensor, axis: TensorAxis) -> Tensor:
    """Returns a tensor that all ranks hold, for use by code that differs between ranks.

    Backward sums the gradients over the ranks.
    """
    if not (tensor.requires_grad and torch.is_grad_enabled()):
        return tensor
    return _Copy.apply(tensor, axis)


def sum_over_ranks(tensor: Tensor, axis: TensorAxis) -> Tensor:
    """Sums a tensor over the ranks in place, and returns it.

    Backward passes the gradient on, because each rank's part has the gradient of the sum.

    Args:
        tensor: This rank's part. Nothing else uses its values.
        axis: The ranks.
    """
    if torch.compiler.is_compiling():
        return _Summed.apply(tensor, axis)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return _Sum.apply(tensor, axis)


def gather_from_ranks(tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
    """Joins the ranks' slices along a dimension. Backward returns this rank's slice of the gradient.

    The gradient of the result must be the same on all ranks.
    """
    return _Gather.apply(tensor, dim % tensor.ndim, axis)


def split_over_ranks(tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
    """Returns this rank's slice of a tensor that all ranks hold. Backward joins the slices' gradients."""
    return _Split.apply(tensor, dim % tensor.ndim, axis)


def gather_for_parts(tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
    """Joins the ranks' slices along a dimension, for use by code that differs between ranks.

    Backward sums the gradients over the ranks, and returns this rank's slice of the sum.
    """
    return _GatherForParts.apply(tensor, dim % tensor.ndim, axis)


def sum_and_scatter(tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
    """Sums a tensor over the ranks, and returns this rank's slice. Backward joins the slices' gradients."""
    return _SumAndScatter.apply(tensor, dim % tensor.ndim, axis)


def exchange(tensor: Tensor, split_dim: int, join_dim: int, axis: TensorAxis) -> Tensor:
    """Sends each rank a slice along one dimension, and joins the received slices along another.

    Backward does the same with the dimensions exchanged.
    """
    return _Exchange.apply(tensor, split_dim % tensor.ndim, join_dim % tensor.ndim, axis)


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis) -> Tensor:
        ctx.axis = axis
        # Unlike a view, this does not keep the input alive, which may keep its copy.
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return sum_over_ranks(gradient.clone(memory_format=torch.contiguous_format), ctx.axis), None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis) -> Tensor:
        ctx.axis = axis
        ctx.mark_dirty(tensor)
        sum_(tensor, axis.number)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return copy_to_ranks(gradient, ctx.axis), None


class _Summed(torch.autograd.Function):
    """Like _Sum, but not in place, for torch.compile."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: TensorAxis) -> Tensor:
        ctx.axis = axis
        return summed(tensor, axis.number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return copy_to_ranks(gradient, ctx.axis), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return gather(tensor, dim, axis.size, axis.number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return split_over_ranks(gradient, ctx.dim, ctx.axis), None, None


class _Split(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return tensor.chunk(axis.size, dim)[axis.rank].contiguous()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return gather_from_ranks(gradient, ctx.dim, ctx.axis), None, None


class _GatherForParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return gather(tensor, dim, axis.size, axis.number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return sum_and_scatter(gradient, ctx.dim, ctx.axis), None, None


class _SumAndScatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int, axis: TensorAxis) -> Tensor:
        ctx.dim, ctx.axis = dim, axis
        return scatter_sum(tensor, dim, axis.size, axis.number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        return gather_for_parts(gradient, ctx.dim, ctx.axis), None, None


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, split_dim: int, join_dim: int, axis: TensorAxis) -> Tensor:
        ctx.dims, ctx.axis = (join_dim, split_dim), axis
        return exchange_slices(tensor, split_dim, join_dim, axis.size, axis.number)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        split_dim, join_dim = ctx.dims
        return exchange(gradient, split_dim, join_dim, ctx.axis), None, None, None
