"""Models of the published figures, as a config.json would tell them."""

from __future__ import annotations

from smdp import memory

GIB = 2**30


def gpt2(layers: int, hidden: int, heads: int, *, vocabulary: int, positions: int) -> memory.Architecture:
    return memory.read_config(
        {
            "model_type": "gpt2",
            "n_layer": layers,
            "n_embd": hidden,
            "n_head": heads,
            "vocab_size": vocabulary,
            "n_positions": positions,
        }
    )
