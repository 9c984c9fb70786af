"""Qwen 2 and 3, dense and with experts."""

from __future__ import annotations

from itertools import groupby

from smdp._core import Architecture, Layers
from smdp.memory.families.gated_decoder import gated_decoder, gated_layers
from smdp.memory.fields import Fields


def qwen2(fields: Fields) -> Architecture:
    """Returns the architecture for model_type qwen2."""
    # Like Llama's classes, these use head_dim if the file has it.
    layers = gated_layers(fields, count=fields.count("num_hidden_layers"), has_query_key_value_bias=True)
    return gated_decoder(fields, "qwen2", "Qwen2", [layers])


def qwen3(fields: Fields) -> Architecture:
    """Returns the architecture for model_type qwen3."""
    has_bias = fields.flag("attention_bias", False)
    head_size = fields.count("head_dim", 128)
    layers = gated_layers(
        fields,
        count=fields.count("num_hidden_layers"),
        head_size=head_size,
        has_query_key_value_bias=has_bias,
        has_output_bias=has_bias,
        has_query_key_norm=True,
    )
    return gated_decoder(fields, "qwen3", "Qwen3", [layers])


def qwen2_moe(fields: Fields) -> Architecture:
    """Returns the architecture for model_type qwen2_moe."""
    has_bias = fields.flag("qkv_bias", True)
    hidden = fields.count("hidden_size")
    experts = fields.count("num_experts")

    def run(count: int, is_sparse: bool) -> Layers:
        if not is_sparse:
            return gated_layers(fields, count=count, has_query_key_value_bias=has_bias)
        return gated_layers(
            fields,
            count=count,
            ffn=fields.count("moe_intermediate_size"),
            has_query_key_value_bias=has_bias,
            experts=experts,
            experts_per_token=fields.count("num_experts_per_tok", maximum=experts),
            shared_ffn=fields.count("shared_expert_intermediate_size"),
            extra=hidden,  # the shared expert's gate
        )

    return gated_decoder(fields, "qwen2_moe", "Qwen2Moe", [run(*each) for each in _runs(fields)])


def qwen3_moe(fields: Fields) -> Architecture:
    """Returns the architecture for model_type qwen3_moe."""
    has_bias = fields.flag("attention_bias", False)
    head_size = fields.head_size("hidden_size", "num_attention_heads", "head_dim")
    experts = fields.count("num_experts", alias="num_local_experts")

    def run(count: int, is_sparse: bool) -> Layers:
        return gated_layers(
            fields,
            count=count,
            ffn=fields.count("moe_intermediate_size") if is_sparse else None,
            head_size=head_size,
            has_query_key_value_bias=has_bias,
            has_output_bias=has_bias,
            experts=experts if is_sparse else 0,
            experts_per_token=fields.count("num_experts_per_tok", maximum=experts) if is_sparse else 0,
            has_query_key_norm=True,
        )

    return gated_decoder(fields, "qwen3_moe", "Qwen3Moe", [run(*each) for each in _runs(fields)])


def _runs(fields: Fields) -> list[tuple[int, bool]]:
    """Returns runs of equal layers: the number of layers, and whether they have experts."""
    step = fields.count("decoder_sparse_step", 1)
    dense = set(fields.counts("mlp_only_layers"))
    layers = fields.count("num_hidden_layers", maximum=1 << 20)
    is_sparse = [index not in dense and (index + 1) % step == 0 for index in range(layers)]
    return [(len(list(run)), value) for value, run in groupby(is_sparse)]
