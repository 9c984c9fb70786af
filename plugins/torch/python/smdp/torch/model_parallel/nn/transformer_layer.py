"""`smp.nn.DistributedTransformerLayer`: attention and feed-forward part of one layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from smdp.torch.model_parallel.nn.arguments import check_norms, checked_tuple
from smdp.torch.model_parallel.nn.attention import DistributedAttentionLayer, entered_mask
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.model_parallel.nn.dropout import LayerDropout, needs_dropout
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.model_parallel.nn.transformer_output import DistributedTransformerOutputLayer


@dataclass(frozen=True)
class LayerPlace:
    """What a layer does at its place within a transformer, besides its own work.

    Attributes:
        layout: The layout of activations.
        enters: Whether the hidden states are this rank's samples.
        enters_others: Whether the masks and the cross states are this rank's samples.
        leaves: Whether the result has this rank's samples.
        input_dropout_prob: Dropout of the input.
    """

    layout: Layout
    enters: bool
    enters_others: bool
    leaves: bool
    input_dropout_prob: float = 0.0


class DistributedTransformerLayer(DistributedModule):
    """One layer of a transformer, whose heads and widths are divided over the ranks.

    Args:
        num_attention_heads: Number of heads over all ranks.
        attention_head_size: Width of a head.
        hidden_size: Width of the hidden states.
        intermediate_size: Width between the linear layers of the feed-forward part.
        attention_dropout_prob: Dropout of attention weights.
        hidden_dropout_prob: Dropout of the outputs of both parts.
        activation: "gelu", "relu", or another name of transformers.
        layernorm_epsilon: Epsilon of the layer norms.
        initializer_range: Standard deviation of initial weights, with `use_normal_initialization`.
        use_normal_initialization: Whether weights start with normal values and biases with 0. False: torch's
            initial values of linear layers.
        causal_mask_size: The largest sequence; tokens then see only earlier ones. None: they see all.
        add_cross_attention: Whether the layer also attends to other states.
        pre_layernorm: Whether the inputs of both parts are normalized.
        post_layernorm: Whether the outputs of both parts are normalized.
        use_alibi: Whether scores get ALiBi's linear biases.
        alibi_bias_max: The largest exponent of ALiBi's slopes.
        fp32_residual_addition: Whether the feed-forward part adds the residual in fp32.
        parallel_branches: Whether both parts get the input, normalized once, as in GPT-J.
        attention_options: Further keyword arguments of `DistributedAttentionLayer`.
        _place: The place within a transformer. None: the layer is called with this rank's samples.

    Raises:
        ValueError: A size is not divisible by `tensor_parallel_degree`, or there is no layer norm.
    """

    def __init__(
        self,
        num_attention_heads: int = 32,
        attention_head_size: int = 32,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        attention_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        causal_mask_size: int | None = None,
        add_cross_attention: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        use_alibi: bool = False,
        alibi_bias_max: int = 8,
        *,
        fp32_residual_addition: bool = False,
        parallel_branches: bool = False,
        attention_options: dict[str, Any] | None = None,
        _place: LayerPlace | None = None,
    ) -> None:
        super().__init__()
        check_norms(pre_layernorm, post_layernorm)
        self._is_alone = _place is None
        self.place = _place or LayerPlace(Layout.of_job(), True, True, True)
        layout = self.place.layout
        self.parallel_branches = parallel_branches
        common: dict[str, Any] = {
            "hidden_dropout_prob": hidden_dropout_prob,
            "layernorm_epsilon": layernorm_epsilon,
            "initializer_range": initializer_range,
            "use_normal_initialization": use_normal_initialization,
            "pre_layernorm": pre_layernorm,
            "post_layernorm": post_layernorm,
            "_layout": layout,
        }
        heads: dict[str, Any] = {
            "num_attention_heads": num_attention_heads,
            "attention_head_size": attention_head_size,
            "hidden_size": hidden_size,
            "attention_dropout_prob": attention_dropout_prob,
        }
        with same_random_numbers(self.tensor_axis):
            self.attention = DistributedAttentionLayer(
                causal_mask_size=causal_mask_size,
                use_alibi=use_alibi,
                alibi_bias_max=alibi_bias_max,
                **(heads | common | (attention_options or {})),
            )
            self.cross_attention = None
            if add_cross_attention:
                self.cross_attention = DistributedAttentionLayer(cross_attention=True, **(heads | common))
            if parallel_branches:
                common["pre_layernorm"] = False
            self.output = DistributedTransformerOutputLayer(
                hidden_size,
                intermediate_size,
                activation=activation,
                fp32_residual_addition=fp32_residual_addition,
                **common,
            )

    @property
    def takes_positions(self) -> bool:
        """Whether the positions of tokens may follow the mask."""
        return self.cross_attention is None and self.attention.rotary_dim is not None

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments with new hidden states, for the next layer.

        Args:
            inputs: (hidden states, attention mask), or with cross attention (hidden states, cross states,
                attention mask, cross mask). Masks are added to scores, (samples, 1, 1, sequence), or None.
                Without cross attention, layers with rotary positions also take these as the third item.

        Raises:
            ValueError: `inputs` is not such a tuple.
        """
        names = ["hidden_states", "attention_mask"]
        if self.cross_attention is not None:
            names = ["hidden_states", "cross_states", "attention_mask", "cross_mask"]
        given = checked_tuple(self, inputs, names, *(["position_ids"] if self.takes_positions else []))
        layout, place = self.place.layout, self.place
        half = len(given) // 2
        hidden, states, masks = given[0], given[1:half], given[half:]
        if place.enters_others:
            samples = hidden.shape[0] if place.enters else layout.own_samples(hidden)
            masks = tuple(entered_mask(each, layout, samples) for each in masks)
            states = tuple(layout.enter(each) for each in states)
        if place.enters:
            hidden = layout.enter(hidden)
        if place.input_dropout_prob:
            is_dropping = needs_dropout(self.training, place.input_dropout_prob)
            dropout = LayerDropout(layout, hidden, is_training=is_dropping)
            hidden = dropout(hidden, place.input_dropout_prob, is_slice=layout.is_split)
        hidden = self.inside(hidden, *states, *masks)
        if place.leaves:
            hidden = layout.leave(hidden)
        return (hidden, *given[1:]) if self._is_alone else (hidden, *states, *masks)

    def inside(self, hidden: Tensor, *others: Any) -> Tensor:
        """Returns new hidden states for the samples of all ranks, which the arguments are."""
        if self.parallel_branches:
            normed = self.attention.pre_layernorm(hidden)
            positions = others[1] if self.takes_positions and len(others) > 1 else None
            found = self.attention.branch(normed, others[0], None, positions)
            return hidden + found + self.output.branch(normed)
        if self.cross_attention is None:
            return self.output(self.attention((hidden, *others)))
        cross, mask, cross_mask = others
        hidden = self.attention((hidden, mask))
        return self.output(self.cross_attention((hidden, cross, cross_mask)))
