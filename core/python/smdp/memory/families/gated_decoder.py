"""Decoders like Llama, Mistral and Qwen: RMS norms, grouped queries, rotary positions, and a gated MLP."""

from __future__ import annotations

from smdp._core import Architecture, Layers
from smdp.memory.families.heads import decoder_head
from smdp.memory.fields import Fields


def gated_layers(
    fields: Fields,
    *,
    count: int,
    key_value_heads: int | None = None,
    head_size: int | None = None,
    ffn: int | None = None,
    has_query_key_value_bias: bool = False,
    has_output_bias: bool = False,
    has_mlp_bias: bool = False,
    has_query_key_norm: bool = False,
    experts: int = 0,
    experts_per_token: int = 0,
    shared_ffn: int = 0,
    extra: int = 0,
) -> Layers:
    """Returns a run of equal layers. Sizes that are not given are read from the fields.

    Args:
        fields: The config.json.
        count: Number of layers in the run.
        key_value_heads: Value if `num_key_value_heads` is missing; None means that it is required.
        head_size: Width of an attention head; None means `head_dim`, or hidden size / number of heads.
        ffn: Inner width of the MLP; None means `intermediate_size`.
        has_query_key_value_bias: Whether the matrices of queries, keys and values have a bias.
        has_output_bias: Whether the attention's output matrix has a bias.
        has_mlp_bias: Whether the three matrices of the MLP have biases.
        has_query_key_norm: Whether queries and keys are normalized.
        experts: Number of experts; 0 means a dense MLP.
        experts_per_token: Number of experts that a token uses.
        shared_ffn: Inner width of the expert that every token uses; 0 means none.
        extra: Number of other parameters per layer.
    """
    heads = fields.count("num_attention_heads")
    groups = fields.count("num_key_value_heads", key_value_heads)
    if heads % groups != 0:
        raise fields.refuse("num_key_value_heads", f"a divisor of the {heads} heads")
    if head_size is None:
        head_size = fields.head_size("hidden_size", "num_attention_heads", "head_dim")
    return Layers(
        count=count,
        hidden=fields.count("hidden_size"),
        heads=heads,
        key_value_heads=groups,
        head_size=head_size,
        ffn=fields.count("intermediate_size") if ffn is None else ffn,
        is_gated=True,
        has_query_key_value_bias=has_query_key_value_bias,
        has_output_bias=has_output_bias,
        has_mlp_bias=has_mlp_bias,
        has_dropout=fields.is_above_zero("attention_dropout", default=0),
        norm_width=1,
        has_unfused_norms=True,
        has_fp32_softmax=True,
        has_query_key_norm=has_query_key_norm,
        experts=experts,
        experts_per_token=experts_per_token,
        shared_ffn=shared_ffn,
        extra=extra,
    )


def gated_decoder(fields: Fields, name: str, prefix: str, layers: list[Layers]) -> Architecture:
    """Returns the architecture of a decoder with these layers.

    Args:
        fields: The config.json.
        name: The model_type.
        prefix: Prefix of the family's class names.
        layers: The runs of layers.
    """
    hidden = fields.count("hidden_size")
    vocabulary = fields.count("vocab_size")
    head = decoder_head(fields, prefix, "ForCausalLM", hidden=hidden, vocabulary=vocabulary, is_tied=False)
    return Architecture(
        name=name,
        hidden=hidden,
        vocabulary=vocabulary,
        layers=layers,
        head_extra=hidden + head.extra,
        outputs=head.outputs,
        is_tied=head.is_tied,
    )
