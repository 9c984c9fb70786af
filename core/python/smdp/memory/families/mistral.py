"""Mistral and Mixtral, which is Mistral with experts."""

from __future__ import annotations

from smdp._core import Architecture
from smdp.memory.families.gated_decoder import gated_decoder, gated_layers
from smdp.memory.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Returns the architecture for model_type mistral."""
    layers = gated_layers(fields, count=fields.count("num_hidden_layers"))
    return gated_decoder(fields, "mistral", "Mistral", [layers])


def mixtral(fields: Fields) -> Architecture:
    """Returns the architecture for model_type mixtral."""
    experts = fields.count("num_local_experts", alias="num_experts")
    layers = gated_layers(
        fields,
        count=fields.count("num_hidden_layers"),
        experts=experts,
        experts_per_token=fields.count("num_experts_per_tok", maximum=experts),
    )
    return gated_decoder(fields, "mixtral", "Mixtral", [layers])
