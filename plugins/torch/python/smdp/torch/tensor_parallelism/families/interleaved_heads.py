"""Attention whose one linear layer has query, key and value of a head side by side: Bloom, Falcon."""

from __future__ import annotations

from typing import Any

from smdp.torch.tensor_parallelism.actions.blocks import Block
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.actions.whole_modules import PartialGradient
from smdp.torch.tensor_parallelism.families.divisions import Division, Rule
from smdp.torch.tensor_parallelism.layers.linear import outputs_of


def _bloom(module: Any, size: int) -> Division:
    heads = module.num_heads
    return Division(
        {
            "query_key_value": Columns((Block(3 * module.hidden_size, heads),)),
            "dense": Rows((Block(module.hidden_size, heads),)),
        },
        {"num_heads": heads // size},
        head_inputs=("alibi",),
        heads=heads,
    )


def _persimmon(module: Any, size: int) -> Division:
    heads = module.num_heads
    return Division(
        {
            "query_key_value": Columns((Block(3 * module.hidden_size, heads),)),
            "dense": Rows((Block(module.hidden_size, heads),)),
            "q_layernorm": PartialGradient(),
            "k_layernorm": PartialGradient(),
        },
        {"num_heads": heads // size},
    )


def _codegen(module: Any, size: int) -> Division:
    # Four blocks, each with queries, values and keys of a quarter of the heads.
    quarters = module.mp_num
    return Division(
        {
            "qkv_proj": Columns((Block(3 * module.embed_dim, quarters),)),
            "out_proj": Rows((Block(module.embed_dim, quarters),)),
        }
    )


def grouped_falcon(module: Any, size: int) -> Division:
    """Returns the division of Falcon's attention whose layer has groups of queries, a key and a value.

    A group has one query in Falcon with multi_query = False.
    """
    heads, groups = module.num_heads, module.num_kv_heads
    return Division(
        {
            "query_key_value": Columns((Block(outputs_of(module.query_key_value), groups),)),
            "dense": Rows((Block(module.hidden_size, groups),)),
        },
        {"num_heads": heads // size, "num_kv_heads": groups // size},
        head_inputs=("alibi", "attention_mask"),
        heads=heads,
    )


RULES: dict[str, Rule] = {
    "BloomAttention": _bloom,
    "PersimmonAttention": _persimmon,
    "CodeGenAttention": _codegen,
}
