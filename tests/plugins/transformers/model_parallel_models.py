"""Tiny models of many families, as config.json files would describe them."""

from __future__ import annotations

from typing import Any

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


def build(family: str) -> Any:
    """Make a model, initialised from the default generator."""
    head, options = MODELS[family]
    config = getattr(transformers, f"{family}{'Text' * (family == 'Gemma3')}Config")(**options)
    return getattr(transformers, family + head)(config)
