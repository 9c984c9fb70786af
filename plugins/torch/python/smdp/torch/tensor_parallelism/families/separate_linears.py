"""Attention with separate linear layers for queries, keys and values: BERT, BART, T5, OPT, ViT and others."""

from __future__ import annotations

import dataclasses
from typing import Any

from smdp.torch.tensor_parallelism.actions.blocks import Block
from smdp.torch.tensor_parallelism.actions.embeddings import Width
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.families.divisions import Division, Rule, per_rank
from smdp.torch.tensor_parallelism.layers.linear import outputs_of


def _rule(query: str, key: str, value: str, out: str, heads: str, *widths: str) -> Rule:
    """Returns a rule.

    Args:
        query: The name of the linear layer of queries.
        key: The name of the linear layer of keys.
        value: The name of the linear layer of values.
        out: The name of the linear layer behind attention, or "" if it belongs to another module.
        heads: The attribute with the number of heads.
        widths: Attributes with the width of all heads.
    """

    def rule(module: Any, size: int) -> Division:
        count = getattr(module, heads)
        block = Block(outputs_of(getattr(module, query)), count)
        children: dict[str, Any] = dict.fromkeys((query, key, value), Columns((block,)))
        if out:
            children[out] = Rows((block,))
        attributes = {name: getattr(module, name) // size for name in (heads, *widths)}
        return Division(children, attributes)

    return rule


def _t5(module: Any, size: int) -> Division:
    block = Block(module.inner_dim, module.n_heads)
    return Division(
        {
            **dict.fromkeys(("q", "k", "v"), Columns((block,))),
            "o": Rows((block,)),
            "relative_attention_bias": Width(gathers=False),
        },
        # Attention without a bias of its own makes zeros for this number of heads.
        {"n_heads": module.n_heads // size, "inner_dim": module.inner_dim // size},
    )


def _xglm(module: Any, size: int) -> Division:
    return dataclasses.replace(_bart(module, size), joined_heads=module.num_heads // size)


def _stablelm(module: Any, size: int) -> Division:
    if module.qk_layernorm:
        raise ValueError(
            "[smdp] tensor_parallel: StableLM with qk_layernorm = True has a norm for each head, which cannot"
            " be divided. Use a model with qk_layernorm = False, or a plan that leaves attention whole."
        )
    heads, keys = module.num_heads, module.num_key_value_heads
    block = Block(heads * module.head_dim, heads)
    key_block = Block(keys * module.head_dim, keys, may_repeat=True)
    own, own_keys = per_rank(heads, size), per_rank(keys, size)
    return Division(
        {
            "q_proj": Columns((block,)),
            **dict.fromkeys(("k_proj", "v_proj"), Columns((key_block,))),
            "o_proj": Rows((block,)),
        },
        {"num_heads": own, "num_key_value_heads": own_keys, "num_key_value_groups": own // own_keys},
    )


_bert = _rule("query", "key", "value", "", "num_attention_heads", "all_head_size")
_bart = _rule("q_proj", "k_proj", "v_proj", "out_proj", "num_heads", "embed_dim")
_vit = _rule("q_proj", "k_proj", "v_proj", "o_proj", "num_attention_heads")

# Families whose code is that of BERT, BART, T5 or ViT with other names.
LIKE_BERT = (
    "Bert",
    "Roberta",
    "Electra",
    "XLMRoberta",
    "Camembert",
    "Ernie",
    "Data2VecText",
    "BertGeneration",
)
LIKE_BART = (
    "Bart",
    "MBart",
    "Pegasus",
    "Whisper",
    "Marian",
    "Blenderbot",
    "BlenderbotSmall",
    "M2M100",
    "PLBart",
)
LIKE_T5 = ("T5", "MT5")
LIKE_VIT = ("ViT", "DeiT")

RULES: dict[str, Rule] = {
    **{f"{family}{kind}Attention": _bert for family in LIKE_BERT for kind in ("Self", "Cross")},
    **{f"{family}Attention": _bart for family in (*LIKE_BART, "OPT", "CLIP")},
    **{f"{family}Attention": _t5 for family in LIKE_T5},
    **{f"{family}Attention": _vit for family in LIKE_VIT},
    "AlbertAttention": _rule("query", "key", "value", "dense", "num_attention_heads", "all_head_size"),
    "DistilBertSelfAttention": _rule("q_lin", "k_lin", "v_lin", "out_lin", "n_heads", "dim"),
    "GPTNeoSelfAttention": _bart,
    "GPTNeoFlashAttention2": _bart,
    "XGLMAttention": _xglm,
    "StableLmAttention": _stablelm,
}
