"""`smp.nn.huggingface.gpt2`: GPT-2 as a distributed language model."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel.nn.huggingface.calls import language_model
from smdp.torch.model_parallel.nn.huggingface.families import Family, State, cross_attention_problem
from smdp.torch.model_parallel.nn.huggingface.layer_names import LayerNames, ModelNames, Names
from smdp.torch.model_parallel.nn.lm_head import DistributedTransformerLMHead

_NAMES = ModelNames(
    LayerNames(
        "h.{}",
        "transformer.seq_layers.{}",
        [
            Names("ln_1", ("attention.pre_layernorm",)),
            Names("attn.c_attn", ("attention.query", "attention.key", "attention.value"), is_turned=True),
            Names("attn.c_proj", ("attention.dense",), is_turned=True),
            Names("ln_2", ("output.pre_layernorm",)),
            Names("mlp.c_fc", ("output.dense1",), is_turned=True),
            Names("mlp.c_proj", ("output.dense2",), is_turned=True),
        ],
    ),
    {"wte": "word_embedding", "wpe": "position_embedding", "ln_f": "transformer.layernorm"},
    "attn",
)


def translate_hf_state_dict_to_smdistributed_gpt2(state_dict: State) -> dict[str, Any]:
    """Returns a whole state dict with the names of smp.nn, given one of Hugging Face's GPT-2."""
    return _NAMES.to_ours(state_dict)


def translate_state_dict_to_hf_gpt2(state_dict: State, max_seq_len: int | None = None) -> dict[str, Any]:
    """Returns a whole state dict of Hugging Face's GPT-2, given one with the names of smp.nn.

    Args:
        state_dict: The result of `model.state_dict()`.
        max_seq_len: The size of the causal masks that transformers 4 expects. None: there are none.
    """
    return _NAMES.to_theirs(state_dict, max_seq_len)


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
        "num_positions": config.n_positions,
        "attention_dropout_prob": config.attn_pdrop,
        "hidden_dropout_prob": config.resid_pdrop,
        "embedding_dropout_prob": config.embd_pdrop,
        "activation": config.activation_function,
        "layernorm_epsilon": config.layer_norm_epsilon,
        "causal_mask_size": config.n_positions,
        "add_lm_head": has_head,
        "tie_input_output_embedding": has_head and config.tie_word_embeddings,
        "initializer_range": config.initializer_range,
        "use_normal_initialization": True,
        "pre_layernorm": True,
        "post_layernorm": False,
        "layer_options": [
            {
                "attention_options": {
                    "scale_attention_scores": config.scale_attn_weights,
                    "scale_attn_by_layer_idx": config.scale_attn_by_inverse_layer_idx,
                    "layer_idx": number,
                    "attention_in_fp32": config.reorder_and_upcast_attn,
                }
            }
            for number in range(config.n_layer)
        ],
    }


def _widths(config: Any) -> dict[str, int]:
    inner = config.n_inner or 4 * config.n_embd
    return {"n_head": config.n_head, "n_embd": config.n_embd, "n_inner": inner}


_FAMILY = Family(
    DistributedTransformerLMHead,
    _arguments,
    _NAMES.to_ours,
    _NAMES.to_theirs,
    language_model,
    _widths,
    cross_attention_problem,
)
CLASSES = dict.fromkeys(["GPT2LMHeadModel", "GPT2Model"], _FAMILY)
