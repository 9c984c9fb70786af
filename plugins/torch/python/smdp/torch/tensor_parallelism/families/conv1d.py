"""GPT-2 and its relatives: Conv1D, whose weight is (inputs, outputs), with query, key and value in thirds."""

from __future__ import annotations

from typing import Any

from smdp.torch.tensor_parallelism.actions.blocks import Block
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.families.divisions import Division, Rule


def _attention(module: Any, size: int) -> Division:
    heads, width = module.num_heads, module.embed_dim
    block = Block(width, heads)
    # Cross-attention has keys and values in c_attn, and queries in q_attn.
    blocks = 2 if hasattr(module, "q_attn") else 3
    return Division(
        {"c_attn": Columns((block,) * blocks), "q_attn": Columns((block,)), "c_proj": Rows((block,))},
        {"num_heads": heads // size, "split_size": module.split_size // size},
    )


def _mlp(module: Any, size: int) -> Division:
    return Division({"c_fc": Columns(), "c_proj": Rows()})


RULES: dict[str, Rule] = {
    "GPT2Attention": _attention,
    "GPT2MLP": _mlp,
    "DecisionTransformerGPT2Attention": _attention,
    "DecisionTransformerGPT2MLP": _mlp,
    "ImageGPTAttention": _attention,
    "ImageGPTMLP": _mlp,
}
