"""`smp.nn.DistributedTransformerOutputLayer`: the feed-forward part of a transformer layer."""

from __future__ import annotations

from torch import Tensor

from smdp.torch.model_parallel.nn.activations import activation_of
from smdp.torch.model_parallel.nn.arguments import check_norms
from smdp.torch.model_parallel.nn.distributed_module import DistributedModule, check_divisible
from smdp.torch.model_parallel.nn.dropout import LayerDropout, needs_dropout
from smdp.torch.model_parallel.nn.initial_values import same_random_numbers
from smdp.torch.model_parallel.nn.layer_norm import DistributedLayerNorm
from smdp.torch.model_parallel.nn.layout import Layout
from smdp.torch.model_parallel.nn.projection import Projection, project


class DistributedTransformerOutputLayer(DistributedModule):
    """Two linear layers with an activation, dropout, residual addition and layer norms.

    Args:
        hidden_size: Width of the hidden states.
        intermediate_size: Width between the linear layers.
        hidden_dropout_prob: Dropout of the output, before the residual is added.
        activation: "gelu", "relu", or another name of transformers.
        layernorm_epsilon: Epsilon of the layer norms.
        initializer_range: Standard deviation of initial weights, with `use_normal_initialization`.
        use_normal_initialization: Whether weights start with normal values and biases with 0. False: torch's
            initial values of linear layers.
        pre_layernorm: Whether the input is normalized.
        post_layernorm: Whether the output is normalized.
        fp32_residual_addition: Whether the residual is added in fp32.
        _layout: The layout inside of another distributed module. None: the layer is called with this rank's
            samples.

    Raises:
        ValueError: A size is not divisible by `tensor_parallel_degree`, or there is no layer norm.
    """

    def __init__(
        self,
        hidden_size: int = 1024,
        intermediate_size: int = 4096,
        hidden_dropout_prob: float = 0.1,
        activation: str = "gelu",
        layernorm_epsilon: float = 1e-5,
        initializer_range: float = 0.02,
        use_normal_initialization: bool = False,
        pre_layernorm: bool = False,
        post_layernorm: bool = True,
        fp32_residual_addition: bool = False,
        *,
        _layout: Layout | None = None,
    ) -> None:
        super().__init__()
        if _layout is None:
            check_norms(pre_layernorm, post_layernorm)
        self.layout = layout = _layout or Layout.of_job()
        self._enters = _layout is None
        check_divisible("hidden_size", hidden_size, layout.size)
        check_divisible("intermediate_size", intermediate_size, layout.size)
        self.hidden_size, self.intermediate_size = hidden_size, intermediate_size
        self.hidden_dropout_prob = hidden_dropout_prob
        self.fp32_residual_addition = fp32_residual_addition
        self.activation = activation_of(activation)
        deviation = initializer_range if use_normal_initialization else None
        with same_random_numbers(self.tensor_axis):
            self.dense1 = Projection(hidden_size, intermediate_size, "column", layout, deviation=deviation)
            self.dense2 = Projection(intermediate_size, hidden_size, "row", layout, deviation=deviation)
        if pre_layernorm:
            self.pre_layernorm = DistributedLayerNorm(hidden_size, layernorm_epsilon, _layout=layout)
        if post_layernorm:
            self.layernorm = DistributedLayerNorm(hidden_size, layernorm_epsilon, _layout=layout)
        self._has_norms = pre_layernorm, post_layernorm

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Returns new hidden states.

        Args:
            hidden_states: (samples, sequence, hidden_size).
        """
        if not self._enters:
            return self.inside(hidden_states)
        return self.layout.leave(self.inside(self.layout.enter(hidden_states)))

    def inside(self, hidden: Tensor) -> Tensor:
        """Returns new hidden states for the samples of all ranks, which the argument has."""
        added = self.branch(self.pre_layernorm(hidden) if self._has_norms[0] else hidden)
        if self.fp32_residual_addition:
            found = (hidden.float() + added.float()).to(hidden.dtype)
        else:
            found = hidden + added
        return self.layernorm(found) if self._has_norms[1] else found

    def branch(self, normed: Tensor) -> Tensor:
        """Returns what is added to the hidden states."""
        is_dropping = needs_dropout(self.training, self.hidden_dropout_prob)
        dropout = LayerDropout(self.layout, normed, is_training=is_dropping)
        (between,) = project([self.dense1], normed)
        output: Tensor = self.dense2(self.activation(between))
        return dropout(output, self.hidden_dropout_prob, is_slice=self.layout.is_split)
