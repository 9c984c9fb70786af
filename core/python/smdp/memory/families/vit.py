"""ViT, an encoder over patches of an image."""

from __future__ import annotations

from smdp._core import Architecture, Layers
from smdp.memory.fields import Fields


def architecture(fields: Fields) -> Architecture:
    """Returns the architecture for model_type vit, whose sequence length is the number of patches + 1."""
    hidden = fields.count("hidden_size")
    heads = fields.count("num_attention_heads")
    channels = fields.count("num_channels", 3)
    height, width = fields.pair("image_size")
    patch_height, patch_width = fields.pair("patch_size")
    patches = (height // patch_height) * (width // patch_width)
    if patches == 0:
        raise fields.refuse("patch_size", f"at most the image_size, {height} x {width}")
    name = fields.model_class(["ViTForImageClassification", "ViTModel", "ViTForMaskedImageModeling"])
    head_extra = 2 * hidden
    embedding_extra = hidden + channels * patch_height * patch_width * hidden + hidden
    match name:
        case "ViTModel":
            head_extra += (hidden + 1) * fields.count("pooler_output_size", hidden)
        case "ViTForMaskedImageModeling":
            head_extra += (hidden + 1) * fields.count("encoder_stride", 16) ** 2 * channels
            embedding_extra += hidden  # the mask token
        case _:
            head_extra += (hidden + 1) * fields.labels()
    layers = Layers(
        count=fields.count("num_hidden_layers"),
        hidden=hidden,
        heads=heads,
        key_value_heads=heads,
        head_size=fields.head_size("hidden_size", "num_attention_heads"),
        ffn=fields.count("intermediate_size"),
        has_query_key_value_bias=fields.flag("qkv_bias", True),
        has_output_bias=True,
        has_mlp_bias=True,
        has_fp32_softmax=True,
        has_dropout=fields.is_above_zero("hidden_dropout_prob", "attention_probs_dropout_prob", default=0),
    )
    return Architecture(
        name="vit",
        hidden=hidden,
        positions=patches + 1,
        embedding_extra=embedding_extra,
        has_embedding_dropout=fields.is_above_zero("hidden_dropout_prob", default=0),
        layers=[layers],
        head_extra=head_extra,
        sequence=patches + 1,
    )
