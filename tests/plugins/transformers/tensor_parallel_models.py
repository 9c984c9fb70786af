"""Tiny models of the families that tensor parallelism divides."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import transformers
from model_parallel_models import MODELS, batch
from torch.overrides import TorchFunctionMode

_PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
_WIDE = {**_PLAIN, "intermediate_size": 48}
_TEXT_TOWER = {**_WIDE, "max_position_embeddings": 16, "eos_token_id": 2, "bos_token_id": 1}

_LIKE_BART = ("ForConditionalGeneration", MODELS["Bart"][1])

# Family: class, and what its config class takes. Others are in MODELS.
_MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "DistilBert": (
        "ForMaskedLM",
        {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 100},
    ),
    "Electra": ("ForMaskedLM", {**_WIDE, "embedding_size": 16}),
    "Falcon": ("ForCausalLM", _PLAIN),
    "Falcon, alibi": (
        "ForCausalLM",
        {**_PLAIN, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    ),
    "Falcon, grouped": (
        "ForCausalLM",
        {**_PLAIN, "num_attention_heads": 8, "num_kv_heads": 4, "new_decoder_architecture": True},
    ),
    "Mpt": (
        "ForCausalLM",
        {"d_model": 32, "n_layers": 2, "n_heads": 4, "vocab_size": 100, "max_seq_len": 32},
    ),
    "StableLm": ("ForCausalLM", {**_WIDE, "num_key_value_heads": 2}),
    "CLIP": (
        "Model",
        {
            "projection_dim": 16,
            "text_config": _TEXT_TOWER,
            "vision_config": {**_WIDE, "image_size": 32, "patch_size": 8},
        },
    ),
    "GPTBigCode": (
        "ForCausalLM",
        {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 100, "n_positions": 64},
    ),
    "CodeGen": (
        "ForCausalLM",
        {"n_layer": 2, "n_embd": 32, "n_head": 4, "vocab_size": 100, "n_positions": 64, "rotary_dim": 4},
    ),
    "ModernBert": ("ForMaskedLM", {**_WIDE, "pad_token_id": 0}),
    "Persimmon": ("ForCausalLM", _WIDE),
    **dict.fromkeys(("MBart", "Pegasus"), _LIKE_BART),
    **dict.fromkeys(("Blenderbot", "BlenderbotSmall", "M2M100", "PLBart"), _LIKE_BART),
    "Marian": ("MTModel", {**_LIKE_BART[1], "pad_token_id": 1, "decoder_start_token_id": 1}),
    # Its head is not tied, and starts so large that rounding in gradients comes near the bound.
    "MT5": (MODELS["T5"][0], {**MODELS["T5"][1], "initializer_factor": 0.3}),
    "GraniteSWA": ("ForCausalLM", {**_WIDE, "num_key_value_heads": 2, "head_dim": 8}),
    # Its class tokens start as zeros, which its norms would enlarge together with rounding.
    "DeiT": (MODELS["ViT"][0], {**MODELS["ViT"][1], "layer_norm_eps": 1e-3}),
    **dict.fromkeys(
        ("XLMRoberta", "Camembert", "Ernie", "Data2VecText"), ("ForMaskedLM", {**_WIDE, "pad_token_id": 0})
    ),
    "BertGeneration": ("Decoder", {**_WIDE, "is_decoder": True}),
    "XGLM": (
        "ForCausalLM",
        {"d_model": 32, "num_layers": 2, "attention_heads": 4, "ffn_dim": 48, "vocab_size": 100},
    ),
    "Albert": ("ForMaskedLM", {**_WIDE, "embedding_size": 16}),
    "Qwen3Moe": (
        "ForCausalLM",
        {
            **_WIDE,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
        },
    ),
    "DeepseekV2": (
        "ForCausalLM",
        {
            **_WIDE,
            "num_key_value_heads": 4,
            "kv_lora_rank": 16,
            "q_lora_rank": None,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
            "n_routed_experts": 4,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "first_k_dense_replace": 1,
        },
    ),
}
_NAMES = "GPT2 GPTNeo GPTJ GPTNeoX Bert Roberta DistilBert Electra T5 Bart OPT Bloom Falcon Mpt Llama Mistral"
_NAMES += " Mixtral Qwen2 Qwen3 Gemma2 Phi3 StableLm ViT CLIP Whisper"
FAMILIES = tuple(_NAMES.split())
MORE = tuple(name for name in _MORE if name not in FAMILIES)
DROPOUT = 0.1


class InDouble(TorchFunctionMode):
    """Leaves out the conversions to single precision that models have."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        converts = func is torch.Tensor.float or torch.float32 in (*args[1:], kwargs.get("dtype"))
        if converts and isinstance(args[0], torch.Tensor) and args[0].dtype == torch.float64:
            if func in (torch.Tensor.float, torch.Tensor.to, torch.Tensor.type):
                return args[0]
            if func in (F.softmax, torch.softmax, torch.Tensor.softmax):
                kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def made(family: str, dropout: float = DROPOUT) -> Any:
    """Makes a model in training mode, with dropout wherever the family has any."""
    head, usual = {**MODELS, **_MORE}[family]
    name = family.split(",")[0]
    config = getattr(transformers, f"{name}Config")(**usual)
    parts = (getattr(config, part, None) for part in ("attn_config", "text_config", "vision_config"))
    for each in (config, *filter(None, parts)):
        drops = [key for key, value in vars(each).items() if "drop" in key and isinstance(value, float | int)]
        # Not through the attribute: MPT's config declares its probability as an integer.
        # Pipelines refuse models that skip layers at random, which M2M100 does by default.
        vars(each).update({key: dropout or 0 for key in drops if "layer" not in key or not dropout})
    if torch.get_default_dtype() == torch.float64:
        config._experts_implementation = "eager"  # the others have single precision only
    return getattr(transformers, name + head)(config).train()


def inputs_of(family: str, rows: int = 2) -> dict[str, Any]:
    """Draws a batch with labels from the default generator."""
    if family == "CLIP":
        tokens = torch.randint(3, 100, (rows, 16))
        tokens[:, 12] = 2  # the end, whose output is the text's
        return {"input_ids": tokens, "pixel_values": torch.randn(rows, 3, 32, 32), "return_loss": True}
    return batch("ViT" if family == "DeiT" else family, rows)
