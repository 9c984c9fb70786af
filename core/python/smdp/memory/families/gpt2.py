"""GPT-2."""

from __future__ import annotations

from smdp._core import Architecture, Layers
from smdp.memory.families.heads import decoder_head
from smdp.memory.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Returns the architecture for model_type gpt2."""
    hidden = fields.count("n_embd", alias="hidden_size")
    heads = fields.count("n_head", alias="num_attention_heads")
    vocabulary = fields.count("vocab_size")
    if fields.flag("add_cross_attention", False):
        raise fields.refuse("add_cross_attention", "false")
    head = decoder_head(fields, "GPT2", "LMHeadModel", hidden=hidden, vocabulary=vocabulary, is_tied=True)
    layers = Layers(
        count=fields.count("n_layer", alias="num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        head_size=fields.head_size("n_embd", "n_head", alias="hidden_size"),
        ffn=fields.count("n_inner", 4 * hidden),
        has_query_key_value_bias=True,
        has_output_bias=True,
        has_mlp_bias=True,
        has_dropout=fields.is_above_zero("resid_pdrop", "attn_pdrop", default=0.1),
    )
    return Architecture(
        name="gpt2",
        hidden=hidden,
        vocabulary=vocabulary,
        positions=fields.count("n_positions", alias="max_position_embeddings"),
        has_embedding_dropout=fields.is_above_zero("embd_pdrop", default=0.1),
        layers=[layers],
        head_extra=2 * hidden + head.extra,
        outputs=head.outputs,
        is_tied=head.is_tied,
    )
