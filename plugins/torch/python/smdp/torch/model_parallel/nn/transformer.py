"""`smp.nn.DistributedTransformer`: a stack of transformer layers."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn

from smdp.torch.model_parallel.nn.arguments import checked_tuple
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layer_norm import DistributedLayerNorm
from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.model_parallel.nn.transformer_layer import DistributedTransformerLayer, entered_inputs


class DistributedTransformer(DistributedModule):
    """Transformer layers, whose heads and widths are divided over the ranks.

    With `pre_layernorm`, the output of the last layer is normalized, because no later layer does; with both
    norms, so is the input of the first one.

    Args:
        num_layers: Number of layers.
        num_attention_heads: See `DistributedTransformerLayer`, as for all arguments that follow.
        attention_head_size: See above.
        hidden_size: See above.
        intermediate_size: See above.
        attention_dropout_prob: See above.
        hidden_dropout_prob: See above.
        activation: See above.
        layernorm_epsilon: See above.
        initializer_range: See above.
        use_normal_initialization: See above.
        causal_mask_size: See above.
        add_cross_attention: See above.
        pre_layernorm: See above.
        post_layernorm: See above.
        use_alibi: See above.
        alibi_bias_max: See above.
        layer_options: Further keyword arguments of each layer, one dict per layer. None: there are none.
        _layout: The layout inside of another distributed module. None: the transformer is called with this
            rank's samples.
        **options: Further keyword arguments of all layers.

    Attributes:
        seq_layers: The layers.

    Raises:
        ValueError: A size is not divisible by `tensor_parallel_degree`, or there is no layer norm.
    """

    def __init__(
        self,
        num_layers: int = 12,
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
        layer_options: list[dict[str, Any]] | None = None,
        _layout: Layout | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self.layout = layout = _layout or Layout.of_job()
        self._enters = _layout is None
        self.add_cross_attention = add_cross_attention
        with same_random_numbers(self.tensor_axis):
            self.seq_layers = nn.Sequential(
                *(
                    DistributedTransformerLayer(
                        num_attention_heads,
                        attention_head_size,
                        hidden_size,
                        intermediate_size,
                        attention_dropout_prob,
                        hidden_dropout_prob,
                        activation,
                        layernorm_epsilon,
                        initializer_range,
                        use_normal_initialization,
                        causal_mask_size,
                        add_cross_attention,
                        pre_layernorm,
                        post_layernorm,
                        use_alibi,
                        alibi_bias_max,
                        _layout=layout,
                        **(options | (layer_options[number] if layer_options else {})),
                    )
                    for number in range(num_layers)
                )
            )
        self._has_norms = pre_layernorm and post_layernorm, pre_layernorm
        if pre_layernorm and post_layernorm:
            self.pre_layernorm = DistributedLayerNorm(hidden_size, layernorm_epsilon, _layout=layout)
        if pre_layernorm:
            self.layernorm = DistributedLayerNorm(hidden_size, layernorm_epsilon, _layout=layout)

    def forward(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Returns the arguments with new hidden states.

        Args:
            inputs: As for `DistributedTransformerLayer`.

        Raises:
            ValueError: `inputs` is not such a tuple.
        """
        names = ["hidden_states", "attention_mask"]
        if self.add_cross_attention:
            names = ["hidden_states", "cross_states", "attention_mask", "cross_mask"]
        given = checked_tuple(self, inputs, names)
        entered = entered_inputs(given, self.layout) if self._enters else given
        if self._has_norms[0]:
            entered = (self.pre_layernorm(entered[0]), *entered[1:])
        hidden = cast("Tensor", self.seq_layers(entered)[0])
        if self._has_norms[1]:
            hidden = self.layernorm(hidden)
        return (self.layout.leave(hidden) if self._enters else hidden, *given[1:])
