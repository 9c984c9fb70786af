"""Cross-entropy over a vocabulary that is divided over the ranks. No rank gathers the logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdp.torch.mesh.slices import even
from smdp.torch.tensor_parallelism.collectives import max_, sum_
from smdp.torch.tensor_parallelism.layers.bounds import check_in_vocabulary
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


def vocabulary_cross_entropy(
    logits: Tensor,
    target: Tensor,
    axis: TensorAxis,
    vocabulary: int,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    reduction: str = "mean",
    z_loss: float = 0.0,
) -> Tensor:
    """Computes the loss of `F.cross_entropy` from slices of the logits.

    With m the largest logit, s the sum of exp(logit - m) and x the logit of the target, the loss of a token
    is m + log(s) - x. Each rank computes its part of s and x, so a token costs four numbers between ranks.

    Args:
        logits: This rank's slice, (..., slice of the vocabulary).
        target: Tokens of the whole vocabulary, (...).
        axis: The ranks that hold the slices.
        vocabulary: The number of tokens of the whole vocabulary.
        ignore_index: Tokens with this target have no loss.
        label_smoothing: The share of the loss that is spread over the whole vocabulary.
        reduction: "mean" over the tokens with a loss, "sum", or "none".
        z_loss: The factor of log(sum of exp(logits))², which is added to each token's loss.

    Returns:
        A scalar, or a tensor like `target` for "none". It is the same on all ranks.

    Raises:
        ValueError: The reduction does not exist.
        IndexError: A target is not in the vocabulary.
    """
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"[smdp] reduction = {reduction!r} is not valid. Use one of: mean, sum, none.")
    begin, _ = even(vocabulary, axis.rank, axis.size)
    shape = target.shape
    flat, kept = target.reshape(-1), target.reshape(-1) != ignore_index
    check_in_vocabulary("target", flat, vocabulary, kept)
    rows = logits.reshape(len(flat), logits.shape[-1])
    losses = _Losses.apply(rows, flat, kept, axis, begin, vocabulary, label_smoothing, z_loss)
    if reduction == "none":
        return losses.reshape(shape)
    total: Tensor = losses.sum()
    return total / kept.sum() if reduction == "mean" else total


class _Losses(torch.autograd.Function):
    """The loss of each token. Targets that are ignored have a loss of 0."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        target: Tensor,
        kept: Tensor,
        axis: TensorAxis,
        begin: int,
        vocabulary: int,
        smoothing: float,
        z_loss: float,
    ) -> Tensor:
        width = logits.shape[-1]
        largest = logits.amax(-1) if width else logits.new_full(logits.shape[:1], -torch.inf)
        max_(largest, axis.number)
        shifted = logits - largest.unsqueeze(-1)
        own = (target - begin).clamp(0, max(width - 1, 0))
        is_own = (target >= begin) & (target < begin + width)
        # Rows: sum of exponentials, logit of the target, sum of the logits.
        parts = logits.new_zeros(3, len(target))
        if width:
            parts[1] = shifted.gather(-1, own.unsqueeze(-1)).squeeze(-1) * is_own
        if smoothing:
            parts[2] = shifted.sum(-1)
        softmax = shifted.exp_()
        parts[0] = softmax.sum(-1)
        sum_(parts, axis.number)
        total = parts[0]
        softmax /= total.unsqueeze(-1)
        log_total = total.log()
        losses = log_total - (1 - smoothing) * parts[1] - smoothing / vocabulary * parts[2]
        log_z = log_total + largest
        if z_loss:
            losses = losses + z_loss * log_z.square()
        ctx.save_for_backward(softmax, own, is_own, kept, log_z)
        ctx.smoothing, ctx.vocabulary, ctx.z_loss = smoothing, vocabulary, z_loss
        return losses.where(kept, losses.new_zeros(()))

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        softmax, own, is_own, kept, log_z = ctx.saved_tensors
        scale = gradients[0] * kept
        factor = 1 + 2 * ctx.z_loss * log_z if ctx.z_loss else 1
        found = softmax * (scale * factor).unsqueeze(-1)
        if ctx.smoothing:
            found -= (ctx.smoothing / ctx.vocabulary * scale).unsqueeze(-1)
        if found.shape[-1]:
            hit = (-(1 - ctx.smoothing) * scale * is_own).unsqueeze(-1)
            found.scatter_add_(-1, own.unsqueeze(-1), hit)
        return found, *[None] * 7
