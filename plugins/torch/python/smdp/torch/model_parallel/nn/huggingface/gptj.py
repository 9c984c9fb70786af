"""`smp.nn.huggingface.gptj`: GPT-J as a distributed language model."""

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
            Names("attn.q_proj", ("attention.query",)),
            Names("attn.k_proj", ("attention.key",)),
            Names("attn.v_proj", ("attention.value",)),
            Names("attn.out_proj", ("attention.dense",)),
            Names("mlp.fc_in", ("output.dense1",)),
            Names("mlp.fc_out", ("output.dense2",)),
        ],
    ),
    {"wte": "word_embedding", "ln_f": "transformer.layernorm"},
    "attn",
)


def translate_hf_gptj_state_dict_to_smdistributed_gptj(state_dict: State) -> dict[str, Any]:
    """Returns a whole state dict with the names of smp.nn, given one of Hugging Face's GPT-J."""
    return _NAMES.to_ours(state_dict)


def translate_state_dict_to_hf_gptj(state_dict: State, max_seq_len: int | None = None) -> dict[str, Any]:
    """Returns a whole state dict of Hugging Face's GPT-J, given one with the names of smp.nn.

    Args:
        state_dict: The result of `model.state_dict()`.
        max_seq_len: The size of the causal masks that transformers 4 expects. None: there are none.
    """
    return _NAMES.to_theirs(state_dict, max_seq_len)


translate_hf_state_dict_to_smdistributed_gptj = translate_hf_gptj_state_dict_to_smdistributed_gptj


def _arguments(module: Any) -> dict[str, Any]:
    config = module.config
    has_head = hasattr(module, "lm_head")
    return {
        "num_layers": config.n_layer,
        "num_attention_heads": config.n_head,
        "attention_head_size": config.n_embd // config.n_head,
        "hidden_size": config.n_embd,
        "intermediate_size": config.n_inner or 4 * config.n_embd,
        "vocab_size": config.vocab_size,
        "num_positions": 0,
        "attention_dropout_prob": config.attn_pdrop,
        "hidden_dropout_prob": config.resid_pdrop,
        "embedding_dropout_prob": config.embd_pdrop,
        "activation": config.activation_function,
        "layernorm_epsilon": config.layer_norm_epsilon,
        "causal_mask_size": config.n_positions,
        "add_lm_head": has_head,
        "tie_input_output_embedding": has_head and config.tie_word_embeddings,
        "use_lm_head_bias": True,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "pre_layernorm": True,
        "post_layernorm": False,
        "parallel_branches": True,
        "attention_options": {
            "rotary_dim": config.rotary_dim or config.n_embd // config.n_head,
            "attention_in_fp32": True,
            "use_qkv_bias": False,
            "use_dense_bias": False,
        },
    }


def _widths(config: Any) -> dict[str, int]:
    inner = config.n_inner or 4 * config.n_embd
    return {"n_head": config.n_head, "n_embd": config.n_embd, "n_inner": inner}


_FAMILY = Family(
    DistributedTransformerLMHead, _arguments, _NAMES.to_ours, _NAMES.to_theirs, language_model, _widths
)
CLASSES = dict.fromkeys(["GPTJForCausalLM", "GPTJModel"], _FAMILY)
