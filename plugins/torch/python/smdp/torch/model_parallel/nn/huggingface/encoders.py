"""What BERT and RoBERTa share: a distributed transformer in place of the encoder."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel.nn.huggingface.calls import encoder
from smdp.torch.model_parallel.nn.huggingface.families import Family, cross_attention_problem
from smdp.torch.model_parallel.nn.huggingface.layer_names import LayerNames, Names
from smdp.torch.model_parallel.nn.transformer import DistributedTransformer

_LAYER = [
    Names("attention.self.query", ("attention.query",)),
    Names("attention.self.key", ("attention.key",)),
    Names("attention.self.value", ("attention.value",)),
    Names("attention.output.dense", ("attention.dense",)),
    Names("attention.output.LayerNorm", ("attention.layernorm",)),
    Names("intermediate.dense", ("output.dense1",)),
    Names("output.dense", ("output.dense2",)),
    Names("output.LayerNorm", ("output.layernorm",)),
]
# The names within an encoder, and those within a model.
INNER = LayerNames("layer.{}", "seq_layers.{}", _LAYER)
NAMES = LayerNames("encoder.layer.{}", "encoder.seq_layers.{}", _LAYER)


def _arguments(module: Any) -> dict[str, Any]:
    config = module.config
    return {
        "num_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "attention_head_size": config.hidden_size // config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "attention_dropout_prob": config.attention_probs_dropout_prob,
        "hidden_dropout_prob": config.hidden_dropout_prob,
        "activation": config.hidden_act,
        "layernorm_epsilon": config.layer_norm_eps,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "pre_layernorm": False,
        "post_layernorm": True,
    }


def _widths(config: Any) -> dict[str, int]:
    return {
        "num_attention_heads": config.num_attention_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
    }


def _problem(config: Any) -> str | None:
    # Its substitute has no causal mask, so each token would see the later ones.
    return "it is a decoder" if getattr(config, "is_decoder", False) else cross_attention_problem(config)


FAMILY = Family(
    DistributedTransformer,
    _arguments,
    INNER.to_ours,
    lambda state_dict, max_seq_len=None: INNER.to_theirs(state_dict),
    encoder,
    _widths,
    _problem,
)
