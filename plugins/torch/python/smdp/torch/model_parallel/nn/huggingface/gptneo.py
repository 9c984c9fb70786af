"""`smp.nn.huggingface.gptneo`: GPT-Neo as a distributed language model."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel.nn.huggingface.calls import language_model
from smdp.torch.model_parallel.nn.huggingface.families import Family, State
from smdp.torch.model_parallel.nn.huggingface.layer_names import LayerNames, ModelNames, Names
from smdp.torch.model_parallel.nn.lm_head import DistributedTransformerLMHead

_NAMES = ModelNames(
    LayerNames(
        "h.{}",
        "transformer.seq_layers.{}",
        [
            Names("ln_1", ("attention.pre_layernorm",)),
            Names("attn.attention.q_proj", ("attention.query",)),
            Names("attn.attention.k_proj", ("attention.key",)),
            Names("attn.attention.v_proj", ("attention.value",)),
            Names("attn.attention.out_proj", ("attention.dense",)),
            Names("ln_2", ("output.pre_layernorm",)),
            Names("mlp.c_fc", ("output.dense1",)),
            Names("mlp.c_proj", ("output.dense2",)),
        ],
    ),
    {"wte": "word_embedding", "wpe": "position_embedding", "ln_f": "transformer.layernorm"},
    "attn.attention",
)


def translate_hf_state_dict_to_smdistributed_gptneo(state_dict: State) -> dict[str, Any]:
    """Returns a whole state dict with the names of smp.nn, given one of Hugging Face's GPT-Neo."""
    return _NAMES.to_ours(state_dict)


def translate_state_dict_to_hf_gptneo(state_dict: State, max_seq_len: int | None = None) -> dict[str, Any]:
    """Returns a whole state dict of Hugging Face's GPT-Neo, given one with the names of smp.nn.

    Args:
        state_dict: The result of `model.state_dict()`.
        max_seq_len: The size of the causal masks that transformers 4 expects. None: there are none.
    """
    return _NAMES.to_theirs(state_dict, max_seq_len)


def _arguments(module: Any) -> dict[str, Any]:
    config = module.config
    has_head = hasattr(module, "lm_head")
    attention = {"scale_attention_scores": False, "attention_in_fp32": True, "use_qkv_bias": False}
    windows = [config.window_size if kind == "local" else None for kind in config.attention_layers]
    return {
        "num_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "attention_head_size": config.hidden_size // config.num_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size or 4 * config.hidden_size,
        "vocab_size": config.vocab_size,
        "num_positions": config.max_position_embeddings,
        "attention_dropout_prob": config.attention_dropout,
        "hidden_dropout_prob": config.resid_dropout,
        "embedding_dropout_prob": config.embed_dropout,
        "activation": config.activation_function,
        "layernorm_epsilon": config.layer_norm_epsilon,
        "causal_mask_size": config.max_position_embeddings,
        "add_lm_head": has_head,
        "tie_input_output_embedding": has_head and config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "pre_layernorm": True,
        "post_layernorm": False,
        "layer_options": [{"attention_options": {**attention, "window_size": each}} for each in windows],
    }


def _widths(config: Any) -> dict[str, int]:
    inner = config.intermediate_size or 4 * config.hidden_size
    return {
        "num_heads": config.num_heads,
        "hidden_size": config.hidden_size,
        "intermediate_size": inner,
    }


_FAMILY = Family(
    DistributedTransformerLMHead, _arguments, _NAMES.to_ours, _NAMES.to_theirs, language_model, _widths
)
CLASSES = dict.fromkeys(["GPTNeoForCausalLM", "GPTNeoModel"], _FAMILY)
