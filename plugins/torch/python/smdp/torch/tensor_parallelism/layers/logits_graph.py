"""How autograd sees logits that are divided over ranks: as whole logits from a slice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from smdp.torch.mesh.slices import even
from smdp.torch.tensor_parallelism.functions import gather_from_ranks, split_over_ranks
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def gathered_logits(part: Tensor, axis: TensorAxis, vocabulary: int) -> Tensor:
    """Returns the logits of a whole vocabulary, given this rank's slice."""
    # The last ranks may have shorter slices.
    width = -(-vocabulary // axis.size)
    padded = F.pad(part, (0, width - part.shape[-1]))
    return gather_from_ranks(padded, -1, axis)[..., :vocabulary]


def slice_of_logits(whole: Tensor, axis: TensorAxis) -> Tensor:
    """Returns this rank's slice of logits that all ranks hold. Backward joins the slices' gradients."""
    vocabulary = whole.shape[-1]
    begin, end = even(vocabulary, axis.rank, axis.size)
    if not (whole.requires_grad and torch.is_grad_enabled()):
        return whole[..., begin:end]
    padded = F.pad(whole, (0, -vocabulary % axis.size))
    return split_over_ranks(padded, -1, axis)[..., : end - begin]


def joined_logits(part: Tensor, axis: TensorAxis, make: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns whole logits with this rank's slice behind them, whose tensor `make` returns.

    The gradient of the result must be the same on all ranks. Backward returns this rank's slice of it.
    """
    return _Joined.apply(part, axis, make)


def set_part_behind(logits: Tensor, part: Tensor, axis: TensorAxis) -> None:
    """Makes autograd see logits as changed in place to those of this slice."""
    with torch._C.DisableTorchFunctionSubclass():
        _Changed.apply(logits, part, axis)


def part_of_result(logits: Tensor, part: Tensor, axis: TensorAxis) -> Tensor:
    """Returns the slice of logits without a slice behind them. Backward joins the slices' gradients."""
    return _Part.apply(logits, part, axis)


def has_part_behind(logits: Tensor) -> bool:
    """Returns whether the gradient of logits belongs to the graph of their slice.

    Otherwise they are a leaf, or the result of a function of autograd that has computed with them.
    """
    with torch._C.DisableTorchFunctionSubclass():
        return not logits.requires_grad or isinstance(logits.grad_fn, _KINDS)


class _Joined(torch.autograd.Function):
    """Whole logits from this rank's slice."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, axis: TensorAxis, make: Callable[[Tensor], Tensor]) -> Tensor:
        _keep(ctx, part, axis)
        return make(part)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return _slice_for(ctx, *gradients), None, None


class _Changed(torch.autograd.Function):
    """Logits whose slice has been changed in place."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, part: Tensor, axis: TensorAxis) -> Tensor:
        _keep(ctx, part, axis)
        ctx.mark_dirty(logits)
        return logits

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        return None, _slice_for(ctx, *gradients), None


class _Part(torch.autograd.Function):
    """This rank's slice of logits without a slice behind them."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, part: Tensor, axis: TensorAxis) -> Tensor:
        ctx.axis, ctx.vocabulary = axis, logits.shape[-1]
        return part.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gathered_logits(gradients[0], ctx.axis, ctx.vocabulary), None, None


_KINDS: Any = tuple(getattr(kind, "_backward_cls") for kind in (_Joined, _Changed))  # noqa: B009


def _keep(ctx: Any, part: Tensor, axis: TensorAxis) -> None:
    ctx.part, ctx.version, ctx.axis = part, part._version, axis
    ctx.set_materialize_grads(False)


def _slice_for(ctx: Any, gradient: Tensor | None) -> Tensor | None:
    if gradient is None:
        return None
    if ctx.part._version != ctx.version:
        raise RuntimeError(
            "[smdp] logits whose vocabulary is divided were changed in place through a view of them, after"
            " a function of autograd had used them. Change a clone() instead."
        )
    own: Tensor | None = getattr(gradient, "part", None)  # the gradient may be divided as well
    return slice_of_logits(gradient, ctx.axis) if own is None else own
