"""Attention of one rank's heads: masks, scores, rotary positions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class AttentionOptions:
    """How scores are computed.

    Attributes:
        scale: The factor of scores.
        causal_mask_size: The largest sequence; tokens then see only earlier ones. None: they see all.
        is_in_fp32: Whether scores are computed in fp32.
        window_size: Tokens see only this many of the last ones. None: all.
        slopes: ALiBi's slope of each head, (heads, 1, 1), or None.
    """

    scale: float
    causal_mask_size: int | None = None
    is_in_fp32: bool = False
    window_size: int | None = None
    slopes: Tensor | None = None


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    options: AttentionOptions,
    drop: Callable[[Tensor], Tensor] | None,
) -> Tensor:
    """Returns the weighted values, (samples, heads, queries, head size).

    Args:
        query: (samples, heads, queries, head size).
        key: (samples, heads, keys, head size).
        value: Of the shape of `key`.
        mask: Added to scores; broadcast to (samples, heads, queries, keys). It counts as a quarter of
            the dtype's range at most, so a query whose keys are all masked gets finite values, and none of
            later keys. None: nothing is masked.
        options: How scores are computed.
        drop: Drops attention weights. None: none are dropped.

    Raises:
        ValueError: The sequence is longer than `causal_mask_size`, or the mask is boolean.
    """
    dtype = value.dtype
    if options.is_in_fp32:
        query, key, value = query.float(), key.float(), value.float()
    bias = _bias(query, key, mask, options)
    is_causal = bias is None and options.causal_mask_size is not None
    if drop is None:
        found = F.scaled_dot_product_attention(
            query, key, value, bias, is_causal=is_causal, scale=options.scale
        )
        return found.to(dtype)
    scores = (query * options.scale) @ key.transpose(-2, -1)
    if is_causal:
        bias = _of_visible(_visible(query, key, options), query)
    if bias is not None:
        scores = scores + bias
    return (drop(scores.softmax(-1)) @ value).to(dtype)


def rotated(tensor: Tensor, width: int, positions: Tensor | None = None) -> Tensor:
    """Returns heads with rotary positions in the first `width` dimensions, in pairs of neighbors.

    Args:
        tensor: (samples, heads, sequence, head size).
        width: The number of dimensions.
        positions: Of each token, (samples, sequence). None: they count from 0 in each sample.
    """
    length = tensor.shape[-2]
    powers = torch.arange(0, width, 2, dtype=torch.float32, device=tensor.device) / width
    if positions is None:
        places = torch.arange(length, dtype=torch.float32, device=tensor.device)
    else:
        places = positions.float().unsqueeze(-2)  # the same for all heads
    angles = places[..., None] * (1.0 / (10000**powers))
    sines, cosines = (each.repeat_interleave(2, -1).to(tensor.dtype) for each in (angles.sin(), angles.cos()))
    first, rest = tensor[..., :width], tensor[..., width:]
    turned = torch.stack([-first[..., 1::2], first[..., ::2]], -1).flatten(-2)
    return torch.cat([first * cosines + turned * sines, rest], -1)


def _bias(query: Tensor, key: Tensor, mask: Tensor | None, options: AttentionOptions) -> Tensor | None:
    """Returns what is added to scores, or None if it is nothing but causality."""
    size, length = options.causal_mask_size, key.shape[-2]
    if size is not None and length > size:
        raise ValueError(
            f"[smdp] the sequence has {length} tokens, but causal_mask_size = {size}; create the module with"
            " the largest length"
        )
    if mask is not None and mask.dtype is torch.bool:
        raise ValueError(
            f"[smdp] the attention mask of shape {tuple(mask.shape)} is boolean, but a mask is added to"
            " scores: 0 where a token is seen, and a very negative number where it is masked; pass"
            " torch.zeros(mask.shape).masked_fill(is_masked, -math.inf)"
        )
    # Where all keys are masked, weights must not be NaN, which infinite scores give. What fp16 rounds to
    # infinity counts, and a finite mask whose sum with a score does. Causality hides more than a mask.
    found = None if mask is None else mask.to(query.dtype).clamp(min=torch.finfo(query.dtype).min / 4)
    if options.slopes is not None:
        distances = torch.arange(1 - length, 1, device=query.device, dtype=query.dtype)
        biases = options.slopes.to(query) * distances
        found = biases if found is None else found + biases
    is_windowed = options.window_size is not None and options.window_size < length
    if size is None or (found is None and not is_windowed):
        return found
    causal = _of_visible(_visible(query, key, options), query)
    return causal if found is None else found + causal


def _visible(query: Tensor, key: Tensor, options: AttentionOptions) -> Tensor:
    """Returns which keys each query sees, (queries, keys)."""
    visible = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    return visible if options.window_size is None else visible.triu(1 - options.window_size)


def _of_visible(visible: Tensor, like: Tensor) -> Tensor:
    lowest = torch.finfo(like.dtype).min / 2  # half, because sums with a mask and scores must stay finite
    return torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill(~visible, lowest)
