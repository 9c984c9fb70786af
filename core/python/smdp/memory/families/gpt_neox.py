"""GPT-NeoX and Pythia."""

from __future__ import annotations

from smdp._core import Architecture, Layers
from smdp.memory.families.heads import decoder_head
from smdp.memory.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Returns the architecture for model_type gpt_neox."""
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    vocabulary = fields.count("vocab_size")
    has_bias = fields.flag("attention_bias", True)
    head = decoder_head(fields, "GPTNeoX", "ForCausalLM", hidden=hidden, vocabulary=vocabulary, is_tied=False)
    layers = Layers(
        count=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        head_size=fields.head_size("hidden_size", "num_attention_heads"),
        ffn=fields.count("intermediate_size"),
        has_query_key_value_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=True,
        has_fp32_softmax=True,
        has_dropout=fields.is_above_zero("hidden_dropout", "attention_dropout", default=0),
    )
    return Architecture(
        name="gpt_neox",
        hidden=hidden,
        vocabulary=vocabulary,
        has_embedding_dropout=fields.is_above_zero("hidden_dropout", default=0),
        layers=[layers],
        head_extra=2 * hidden + head.extra,
        outputs=head.outputs,
        is_tied=head.is_tied,
    )
