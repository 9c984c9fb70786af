"""Attention whose queries share a single key and value, which every rank holds: Falcon-7B, GPT-BigCode."""

from __future__ import annotations

from typing import Any

from smdp.torch.tensor_parallelism.actions.blocks import Block
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.families.divisions import Division, Rule
from smdp.torch.tensor_parallelism.families.interleaved_heads import grouped_falcon


def _falcon(module: Any, size: int) -> Division:
    if module.new_decoder_architecture or not module.multi_query:
        return grouped_falcon(module, size)
    heads = module.num_heads
    block = Block(module.hidden_size, heads)
    shared = Block(module.head_dim, 1, may_repeat=True)
    return Division(
        {"query_key_value": Columns((block, shared, shared)), "dense": Rows((block,))},
        {"num_heads": heads // size},
        head_inputs=("alibi", "attention_mask"),
        heads=heads,
    )


def _bigcode(module: Any, size: int) -> Division:
    if module.is_cross_attention:
        raise ValueError(
            "[smdp] tensor_parallel: GPT-BigCode's cross-attention cannot be divided. Use a model with"
            " add_cross_attention = False, or a plan that leaves attention whole."
        )
    heads, width = module.num_heads, module.embed_dim
    block = Block(width, heads)
    shared = Block(module.head_dim, 1, may_repeat=True)
    blocks = (block, shared, shared) if module.multi_query else (Block(3 * width, heads),)
    attributes = {"num_heads": heads // size, "embed_dim": width // size}
    if module.multi_query:
        attributes["num_key_value_groups"] = heads // size
    return Division({"c_attn": Columns(blocks), "c_proj": Rows((block,))}, attributes)


RULES: dict[str, Rule] = {
    "FalconAttention": _falcon,
    "FalconFlashAttention2": _falcon,
    "GPTBigCodeAttention": _bigcode,
}
