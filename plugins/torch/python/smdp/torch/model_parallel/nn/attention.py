"""`smp.nn.DistributedAttentionLayer`: attention whose heads are divided over the ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from smdp.torch.model_parallel.nn.arguments import check_norms, checked_tuple
from smdp.torch.model_parallel.nn.attention_scores import AttentionOptions, attend, rotated
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule, check_divisible
from smdp.torch.model_parallel.nn.dropout import LayerDropout, needs_dropout
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layer_norm import DistributedLayerNorm
from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.model_parallel.nn.projection import Projection, project


class DistributedAttentionLayer(DistributedModule):
    """Multi-head attention with its projections, dropout, residual addition and layer norms.

    Args:
        num_attention_heads: Number of heads over all ranks.
        attention_head_size: Width of a head.
        hidden_size: Width of the hidden states.
        attention_dropout_prob: Dropout of attention weights.
        hidden_dropout_prob: Dropout of the output, before the residual is added.
        layernorm_epsilon: Epsilon of the layer norms.
        initializer_range: Standard deviation of initial weights, with `use_normal_initialization`.
        use_normal_initialization: Whether weights start with normal values and biases with 0. False: torch's
            initial values of linear layers.
        cross_attention: Whether keys and values come from other states.
        causal_mask_size: The largest sequence; tokens then see only earlier ones. None: they see all.
        pre_layernorm: Whether the input is normalized.
        post_layernorm: Whether the output is normalized.
        scale_attention_scores: Whether scores are divided by the root of the head size.
        scale_attn_by_layer_idx: Whether scores are also divided by `layer_idx` + 1.
        layer_idx: The number of the layer.
        attention_in_fp32: Whether scores are computed in fp32.
        use_qkv_bias: Whether the projections of queries, keys and values have biases.
        use_dense_bias: Whether the projection of the output has a bias.
        rotary_dim: The width of rotary positions in each head, as in GPT-J. None: there are none.
        window_size: Tokens see only this many of the last ones. None: all.
        use_alibi: Whether scores get ALiBi's linear biases.
        alibi_bias_max: The largest exponent of ALiBi's slopes.
        _layout: The layout inside of another distributed module. None: the layer is called with this rank's
            samples.

    Raises:
        ValueError: A size is not divisible by `tensor_parallel_degree`, or there is no layer norm.
    """

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        cross_attention: bool = False,
        causal_mask_size: int | None = None,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        *,
        scale_attention_scores: bool = True,
        scale_attn_by_layer_idx: bool = False,
        layer_idx: int | None = None,
        attention_in_fp32: bool = False,
        use_qkv_bias: bool = True,
        use_dense_bias: bool = True,
        rotary_dim: int | None = None,
        window_size: int | None = None,
        use_alibi: bool = False,
        alibi_bias_max: int = 8,
        _layout: Layout | None = None,
    ) -> None:
        super().__init__()
        if _layout is None:
            check_norms(pre_layernorm, post_layernorm)
        self.layout = layout = _layout or Layout.of_job()
        self._enters = _layout is None
        check_divisible("num_attention_heads", num_attention_heads, layout.size)
        check_divisible("hidden_size", hidden_size, layout.size)
        self.num_attention_heads, self.attention_head_size = num_attention_heads, attention_head_size
        self.hidden_size, self.cross_attention = hidden_size, cross_attention
        self.attention_dropout_prob = attention_dropout_prob
        self.hidden_dropout_prob = hidden_dropout_prob
        self.options = AttentionOptions(
            causal_mask_size=None if cross_attention else causal_mask_size,
            scale=(attention_head_size**-0.5 if scale_attention_scores else 1.0)
            / ((layer_idx or 0) + 1 if scale_attn_by_layer_idx else 1),
            is_in_fp32=attention_in_fp32,
            window_size=window_size,
            slopes=alibi_slopes(num_attention_heads, alibi_bias_max, layout) if use_alibi else None,
        )
        self.rotary_dim = rotary_dim
        deviation = initializer_range if use_normal_initialization else None
        inner = num_attention_heads * attention_head_size

        def projection(inputs: int, outputs: int, kind: Any, bias: bool) -> Projection:
            return Projection(inputs, outputs, kind, layout, bias=bias, deviation=deviation)

        with same_random_numbers(self.tensor_axis):
            self.query = projection(hidden_size, inner, "column", use_qkv_bias)
            self.key = projection(hidden_size, inner, "column", use_qkv_bias)
            self.value = projection(hidden_size, inner, "column", use_qkv_bias)
            self.dense = projection(inner, hidden_size, "row", use_dense_bias)
        if pre_layernorm:
            self.pre_layernorm = DistributedLayerNorm(hidden_size, layernorm_epsilon, _layout=layout)
        if post_layernorm:
            self.layernorm = DistributedLayerNorm(hidden_size, layernorm_epsilon, _layout=layout)
        self._has_norms = pre_layernorm, post_layernorm

    def forward(self, inputs: tuple[Tensor, ...]) -> Tensor:
        """Returns new hidden states, (samples, sequence, hidden_size).

        Args:
            inputs: (hidden states, attention mask), or with cross attention (hidden states, cross states,
                attention mask). Masks are added to scores, (samples, 1, 1, sequence), or None. With
                `rotary_dim`, the positions may follow, (samples, sequence); default: 0, 1, 2, ...

        Raises:
            ValueError: `inputs` is not such a tuple.
        """
        names = ("hidden_states", "cross_states", "attention_mask")
        if self.cross_attention:
            hidden, cross, mask = checked_tuple(self, inputs, names)
            positions = None
        else:
            more = ["position_ids"] if self.rotary_dim is not None else []
            given = checked_tuple(self, inputs, (names[0], names[2]), *more)
            hidden, cross, mask = given[0], None, given[1]
            positions = given[2] if len(given) > 2 else None
        if not self._enters:
            return self.inside(hidden, mask, cross, positions)
        layout = self.layout
        found = self.inside(
            layout.enter(hidden),
            entered_mask(mask, layout, hidden.shape[0]),
            None if cross is None else layout.enter(cross),
            entered_mask(positions, layout, hidden.shape[0]),
        )
        return layout.leave(found)

    def inside(
        self, hidden: Tensor, mask: Tensor | None, cross: Tensor | None, positions: Tensor | None
    ) -> Tensor:
        """Returns new hidden states for the samples of all ranks, which the arguments are."""
        normed = self.pre_layernorm(hidden) if self._has_norms[0] else hidden
        found = hidden + self.branch(normed, mask, cross, positions)
        return self.layernorm(found) if self._has_norms[1] else found

    def branch(
        self, normed: Tensor, mask: Tensor | None, cross: Tensor | None, positions: Tensor | None
    ) -> Tensor:
        """Returns what is added to the hidden states."""
        is_dropping = needs_dropout(self.training, self.attention_dropout_prob, self.hidden_dropout_prob)
        dropout = LayerDropout(self.layout, normed, is_training=is_dropping)
        if cross is None:
            query, key, value = project([self.query, self.key, self.value], normed)
        else:
            (query,) = project([self.query], normed)
            key, value = project([self.key, self.value], cross)
        query, key, value = (
            each.unflatten(-1, (-1, self.attention_head_size)).transpose(1, 2) for each in (query, key, value)
        )
        if self.rotary_dim is not None:
            query, key = (rotated(each, self.rotary_dim, positions) for each in (query, key))

        def drop(weights: Tensor) -> Tensor:
            return dropout(weights, self.attention_dropout_prob, is_slice=True)

        drops = drop if needs_dropout(self.training, self.attention_dropout_prob) else None
        context = attend(query, key, value, mask, self.options, drops)
        output: Tensor = self.dense(context.transpose(1, 2).flatten(2))
        return dropout(output, self.hidden_dropout_prob, is_slice=self.layout.is_split)


def entered_mask(mask: Tensor | None, layout: Layout, samples: int) -> Tensor | None:
    """Returns the mask, or positions, of the samples of all ranks; one row for all samples stays.

    Args:
        mask: That of this rank's samples.
        layout: The layout of activations.
        samples: The number of this rank's samples.
    """
    if mask is None or mask.ndim == 0 or (mask.shape[0] == 1 and samples != 1):
        return mask
    return layout.enter_whole(mask)


def alibi_slopes(heads: int, largest: int, layout: Layout) -> Tensor:
    """Returns the slopes of this rank's heads, (heads, 1, 1)."""
    steps = torch.arange(1, heads + 1, dtype=torch.float32, device="cpu")
    own = (2.0 ** (-steps * largest / heads)).chunk(layout.size)[layout.axis.rank]
    return own[:, None, None]
