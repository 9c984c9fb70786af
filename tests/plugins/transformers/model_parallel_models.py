"""Tiny models of many families, as config.json files would describe them."""

from __future__ import annotations

from typing import Any

import torch
import transformers

_LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_TEXT = {**_LAYERS, "vocab_size": 100, "pad_token_id": 0}
_GROUPED = {**_TEXT, "num_key_value_heads": 2}
_TWO_SIDED: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "vocab_size": 100,
}

# Family: class, and what its config class takes.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("LMHeadModel", {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 100, "n_positions": 64}),
    "Bert": ("ForMaskedLM", _TEXT),
    "Roberta": ("ForMaskedLM", _TEXT),
    "GPTJ": ("ForCausalLM", {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 100, "rotary_dim": 4}),
    "GPTNeoX": ("ForCausalLM", _TEXT),
    "GPTNeo": (
        "ForCausalLM",
        {
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "vocab_size": 100,
        },
    ),
    "OPT": (
        "ForCausalLM",
        {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "ffn_dim": 48,
            "vocab_size": 100,
            "word_embed_proj_dim": 32,
        },
    ),
    "Bloom": ("ForCausalLM", {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100}),
    "Llama": ("ForCausalLM", _GROUPED),
    "Mistral": ("ForCausalLM", _GROUPED),
    "Qwen2": ("ForCausalLM", _GROUPED),
    "Qwen3": ("ForCausalLM", {**_GROUPED, "head_dim": 8}),
    "Gemma2": ("ForCausalLM", {**_GROUPED, "head_dim": 8}),
    "Gemma3": ("ForCausalLM", {**_GROUPED, "head_dim": 8}),
    "Phi3": ("ForCausalLM", _GROUPED),
    "Mixtral": ("ForCausalLM", {**_GROUPED, "num_local_experts": 4}),
    "T5": (
        "ForConditionalGeneration",
        {
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "vocab_size": 100,
            "decoder_start_token_id": 0,
        },
    ),
    "Bart": ("ForConditionalGeneration", {**_TWO_SIDED, "max_position_embeddings": 64}),
    "ViT": ("ForImageClassification", {**_LAYERS, "image_size": 32, "patch_size": 8}),
    "Whisper": (
        "ForConditionalGeneration",
        {
            **_TWO_SIDED,
            "max_source_positions": 50,
            "max_target_positions": 40,
            "num_mel_bins": 8,
            "pad_token_id": 0,
            "decoder_start_token_id": 1,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "Swin": (
        "ForImageClassification",
        {
            "image_size": 32,
            "patch_size": 4,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
        },
    ),
}


# Those of which all must split; Swin's windows are for the tests of units.
FAMILIES = tuple(family for family in MODELS if family != "Swin")
# Zeros at the end of each row: of rows taken two by two, some have none and some differ.
_PADDING = (4, 0, 0, 0, 7, 1, 2, 3)


def build(family: str, **options: Any) -> Any:
    """Make a model, initialised from the default generator; options replace those of its config."""
    head, usual = MODELS[family]
    cls = getattr(transformers, f"{family}{'Text' * (family == 'Gemma3')}Config")
    return getattr(transformers, family + head)(cls(**{**usual, **options}))


def without_dropout(family: str, blocks: int) -> Any:
    """Make a model that draws nothing, with so many blocks, half of them in its encoder if it has one."""
    usual = MODELS[family][1]
    options: dict[str, Any] = {
        key: blocks for key in ("n_layer", "num_hidden_layers", "num_layers") if key in usual
    }
    if family == "GPTNeo":
        options["attention_types"] = [[["global", "local"], blocks // 2]]
    if family in ("T5", "Bart", "Whisper"):
        options = {
            key: blocks // 2 for key in ("num_layers", "encoder_layers", "decoder_layers") if key in usual
        }
    if family == "Mixtral":
        options["output_router_logits"] = True  # its loss has a part from every block
    config = build(family).config
    drops = [key for key, value in vars(config).items() if "drop" in key and isinstance(value, float)]
    return build(family, **options, **dict.fromkeys(drops, 0.0))


def batch(family: str, rows: int = 2) -> dict[str, torch.Tensor]:
    """Make inputs with labels; of text with a padding mask, and -100 for what is not to be learned."""
    tokens = torch.randint(3, 100, (rows, 16))
    if family in ("ViT", "Swin"):
        return {"pixel_values": torch.randn(rows, 3, 32, 32), "labels": torch.arange(rows) % 2}
    mask = torch.ones_like(tokens)
    for row in range(rows):
        mask[row, 16 - _PADDING[row] :] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    if family == "Whisper":
        return {"input_features": torch.randn(rows, 8, 100), "labels": labels}
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}
