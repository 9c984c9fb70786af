"""`smp.nn.DistributedTransformer`: a stack of transformer layers."""

from __future__ import annotations

import functools
from typing import Any, cast

from torch import Tensor, nn

from smdp.torch.model_parallel.nn.arguments import checked_tuple
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layer_norm import DistributedLayerNorm
from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.model_parallel.nn.transformer_layer import DistributedTransformerLayer, LayerPlace


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
            rank's samples, and returns them.
        _leaves: Whether the result has this rank's samples inside of another module.
        _input_dropout_prob: Dropout of the input.
        **options: Further keyword arguments of all layers.

    Attributes:
        seq_layers: The layers.
        takes_positions: Whether the positions of tokens may follow the mask.

    Raises:
        ValueError: A size is not divisible by `tensor_parallel_degree`, or there is no layer norm.
    """

    is_whole_unit = False

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
        _leaves: bool = False,
        _input_dropout_prob: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"[smdp] num_layers = {num_layers} is not valid; allowed: at least 1")
        self.layout = layout = _layout or Layout.of_job()
        has_first_norm = pre_layernorm and post_layernorm
        enters, leaves = _layout is None, _layout is None or _leaves

        def place(number: int) -> LayerPlace:
            is_first, is_last = number == 0, number == num_layers - 1
            return LayerPlace(
                layout,
                enters=is_first and enters and not has_first_norm,
                enters_others=is_first,
                leaves=is_last and leaves and not pre_layernorm,
                input_dropout_prob=_input_dropout_prob if is_first else 0.0,
            )

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
                        _place=place(number),
                        **(options | (layer_options[number] if layer_options else {})),
                    )
                    for number in range(num_layers)
                )
            )
        self.takes_positions = bool(self.seq_layers[0].takes_positions)
        self._has_norms = has_first_norm, pre_layernorm
        norm = functools.partial(DistributedLayerNorm, hidden_size, layernorm_epsilon, _layout=layout)
        if has_first_norm:
            self.pre_layernorm = norm(_enters=enters)
        if pre_layernorm:
            self.layernorm = norm(_leaves=leaves)

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
        given = checked_tuple(self, inputs, names, *(["position_ids"] if self.takes_positions else []))
        hidden = self.pre_layernorm(given[0]) if self._has_norms[0] else given[0]
        hidden = cast("Tensor", self.seq_layers((hidden, *given[1:]))[0])
        return (self.layernorm(hidden) if self._has_norms[1] else hidden, *given[1:])
