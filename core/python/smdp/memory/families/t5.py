"""T5, including version 1.1: an encoder, and a decoder with cross-attention."""

from __future__ import annotations

from smdp._core import Architecture, Layers
from smdp.memory.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Returns the architecture for model_type t5, whose logits are always tied, as in transformers 5."""
    hidden = fields.count("d_model", alias="hidden_size")
    heads = fields.count("num_heads", alias="num_attention_heads")
    vocabulary = fields.count("vocab_size")
    encoder = fields.count("num_layers", alias="num_hidden_layers")
    projection = fields.word("feed_forward_proj", "relu").split("-")
    if len(projection) > 2 or (len(projection) == 2 and projection[0] != "gated"):
        raise fields.refuse("feed_forward_proj", "NAME or gated-NAME, e.g. relu, gated-gelu")
    name = fields.model_class(["T5ForConditionalGeneration", "T5Model", "T5EncoderModel"])

    def run(count: int, *, is_decoder: bool) -> Layers:
        return Layers(
            count=count,
            hidden=hidden,
            heads=heads,
            key_value_heads=heads,
            head_size=fields.count("d_kv"),
            ffn=fields.count("d_ff"),
            is_gated=len(projection) == 2,
            is_relu=projection[-1] == "relu",
            has_cross_attention=is_decoder,
            has_dropout=fields.is_above_zero("dropout_rate", default=0.1),
            norms=3 if is_decoder else 2,
            norm_width=1,
            has_unfused_norms=True,
        )

    layers = [run(encoder, is_decoder=False)]
    has_decoder = name != "T5EncoderModel"
    if has_decoder:
        layers.append(run(fields.count("num_decoder_layers", encoder), is_decoder=True))
    # Each stack has relative positions, which its first layer holds, and a final norm.
    stack = fields.count("relative_attention_num_buckets", 32) * heads + hidden
    outputs = vocabulary if name == "T5ForConditionalGeneration" else 0
    return Architecture(
        name="t5",
        hidden=hidden,
        vocabulary=vocabulary,
        embedding_extra=stack,
        has_embedding_dropout=fields.is_above_zero("dropout_rate", default=0.1),
        layers=layers,
        head_extra=stack if has_decoder else 0,
        outputs=outputs,
        is_tied=outputs > 0,
    )
