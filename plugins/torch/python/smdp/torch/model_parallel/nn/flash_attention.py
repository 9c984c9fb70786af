"""`smp.nn.FlashAttentionLayer`: attention of heads that a module has already projected."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.model_parallel.nn.attention_scores import AttentionOptions, attend


class FlashAttentionLayer(nn.Module):
    """Computes attention with torch's `scaled_dot_product_attention`.

    Args:
        attention_dropout_prob: Dropout of attention weights.
        attention_head_size: Width of a head. None: that of the input.
        scale_attention_scores: Whether scores are divided by the root of the head size.
        scale_attn_by_layer_idx: Whether scores are also divided by `layer_idx` + 1.
        layer_idx: The number of the layer.
        scale: The factor of scores, which replaces the others. None: see above.
        triton_flash_attention: Has no effect, because torch chooses the kernel.
        use_alibi: Must be False, because the layer does not know which heads it has.

    Raises:
        ValueError: `use_alibi` is set.
    """

    def __init__(
        self,
        attention_dropout_prob: float = 0.1,
        attention_head_size: int | None = None,
        scale_attention_scores: bool = True,
        scale_attn_by_layer_idx: bool = False,
        layer_idx: int | None = None,
        scale: float | None = None,
        triton_flash_attention: bool = False,
        use_alibi: bool = False,
    ) -> None:
        super().__init__()
        if use_alibi:
            raise ValueError(
                "[smdp] FlashAttentionLayer got use_alibi = True, but does not know which heads it has; use"
                " smp.nn.DistributedAttentionLayer(use_alibi=True)"
            )
        self.attention_dropout_prob = attention_dropout_prob
        self.attention_head_size = attention_head_size
        self.scale = scale
        self._is_scaled = scale_attention_scores
        self._divisor = (layer_idx or 0) + 1 if scale_attn_by_layer_idx else 1

    def forward(self, qkv: Tensor, attn_mask: Tensor | None = None, causal: bool = False) -> Tensor:
        """Returns the weighted values, (samples, heads, sequence, head size).

        Args:
            qkv: Queries, keys and values, (samples, sequence, 3, heads, head size).
            attn_mask: Added to scores, (samples, 1, 1, sequence).
            causal: Whether tokens see only earlier ones.
        """
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        size = self.attention_head_size or qkv.shape[-1]
        scale = self.scale
        if scale is None:
            scale = (size**-0.5 if self._is_scaled else 1.0) / self._divisor
        options = AttentionOptions(scale, qkv.shape[1] if causal else None)
        is_dropping = self.training and self.attention_dropout_prob > 0
        return attend(query, key, value, attn_mask, options, self._drop if is_dropping else None)

    def _drop(self, weights: Tensor) -> Tensor:
        return F.dropout(weights, self.attention_dropout_prob)
