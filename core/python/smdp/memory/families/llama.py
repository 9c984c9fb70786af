"""Llama 1 to 3."""

from __future__ import annotations

from smdp._core import Architecture
from smdp.memory.families.gated_decoder import gated_decoder, gated_layers
from smdp.memory.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Returns the architecture for model_type llama."""
    has_bias = fields.flag("attention_bias", False)
    layers = gated_layers(
        fields,
        count=fields.count("num_hidden_layers"),
        key_value_heads=fields.count("num_attention_heads"),
        has_query_key_value_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=fields.flag("mlp_bias", False),
    )
    return gated_decoder(fields, "llama", "Llama", [layers])
