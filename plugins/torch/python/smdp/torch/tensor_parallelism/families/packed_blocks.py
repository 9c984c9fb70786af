"""Attention whose one linear layer has all queries, then all keys, then all values: Phi-3, MPT."""

from __future__ import annotations

from typing import Any

from smdp.torch.tensor_parallelism.actions.blocks import Block
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.families.divisions import Division, Rule, per_rank


def _phi3(module: Any, size: int) -> Division:
    heads, keys = module.config.num_attention_heads, module.num_key_value_heads
    block = Block(heads * module.head_dim, heads)
    key_block = Block(keys * module.head_dim, keys, may_repeat=True)
    own, own_keys = per_rank(heads, size), per_rank(keys, size)
    return Division(
        {"qkv_proj": Columns((block, key_block, key_block)), "o_proj": Rows((block,))},
        {"num_key_value_heads": own_keys, "num_key_value_groups": own // own_keys},
        {"num_attention_heads": own},
    )


def _mpt(module: Any, size: int) -> Division:
    block = Block(module.hidden_size, module.n_heads)
    return Division(
        {"Wqkv": Columns((block,) * 3), "out_proj": Rows((block,))},
        {"n_heads": module.n_heads // size},
        head_inputs=("position_bias",),
        heads=module.n_heads,
    )


def _modernbert(module: Any, size: int) -> Division:
    heads = module.config.num_attention_heads
    block = Block(heads * module.head_dim, heads)
    return Division({"Wqkv": Columns((block,) * 3), "Wo": Rows((block,))})


def _halves(up: str, down: str) -> Rule:
    """Returns a rule for a linear part whose first layer has two halves, one of which is the gate."""

    def rule(module: Any, size: int) -> Division:
        width = getattr(module, down).in_features
        return Division({up: Columns((Block(width, width),) * 2), down: Rows()})

    return rule


RULES: dict[str, Rule] = {
    "Phi3Attention": _phi3,
    "Phi3MLP": _halves("gate_up_proj", "down_proj"),
    "MptAttention": _mpt,
    "ModernBertAttention": _modernbert,
    "ModernBertMLP": _halves("Wi", "Wo"),
}
