"""Plain transformers in one process, with the parameter names of smp.nn."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LOWEST = torch.finfo(torch.float32).min / 2


class Attention(nn.Module):
    def __init__(self, heads: int, size: int, hidden: int, pre: bool, post: bool, causal: bool) -> None:
        super().__init__()
        self.heads, self.size, self.causal = heads, size, causal
        self.query = nn.Linear(hidden, heads * size)
        self.key = nn.Linear(hidden, heads * size)
        self.value = nn.Linear(hidden, heads * size)
        self.dense = nn.Linear(heads * size, hidden)
        if pre:
            self.pre_layernorm = nn.LayerNorm(hidden)
        if post:
            self.layernorm = nn.LayerNorm(hidden)

    def forward(self, hidden: Tensor, mask: Any = None, cross: Any = None) -> Tensor:
        normed = self.pre_layernorm(hidden) if hasattr(self, "pre_layernorm") else hidden
        other = normed if cross is None else cross
        query, key, value = (
            projected.unflatten(-1, (self.heads, self.size)).transpose(1, 2)
            for projected in (self.query(normed), self.key(other), self.value(other))
        )
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.size)
        if self.causal:
            scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), LOWEST)
        if mask is not None:
            scores = scores + mask
        found = hidden + self.dense((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        return self.layernorm(found) if hasattr(self, "layernorm") else found


class Output(nn.Module):
    def __init__(self, hidden: int, between: int, pre: bool, post: bool) -> None:
        super().__init__()
        self.dense1, self.dense2 = nn.Linear(hidden, between), nn.Linear(between, hidden)
        if pre:
            self.pre_layernorm = nn.LayerNorm(hidden)
        if post:
            self.layernorm = nn.LayerNorm(hidden)

    def forward(self, hidden: Tensor) -> Tensor:
        normed = self.pre_layernorm(hidden) if hasattr(self, "pre_layernorm") else hidden
        found = hidden + self.dense2(F.gelu(self.dense1(normed)))
        return self.layernorm(found) if hasattr(self, "layernorm") else found


class Layer(nn.Module):
    def __init__(self, pre: bool, post: bool, causal: bool, cross: bool, sizes: Any) -> None:
        super().__init__()
        heads, size, hidden, between = sizes
        self.attention = Attention(heads, size, hidden, pre, post, causal)
        self.cross_attention = Attention(heads, size, hidden, pre, post, False) if cross else None
        self.output = Output(hidden, between, pre, post)

    def forward(self, hidden: Tensor, mask: Any = None, cross: Any = None, cross_mask: Any = None) -> Tensor:
        hidden = self.attention(hidden, mask)
        if self.cross_attention is not None:
            hidden = self.cross_attention(hidden, cross_mask, cross)
        return self.output(hidden)


class Transformer(nn.Module):
    def __init__(self, layers: int, pre: bool, post: bool, causal: bool, cross: bool, sizes: Any) -> None:
        super().__init__()
        self.seq_layers = nn.Sequential(*(Layer(pre, post, causal, cross, sizes) for _ in range(layers)))
        if pre and post:
            self.pre_layernorm = nn.LayerNorm(sizes[2])
        if pre:
            self.layernorm = nn.LayerNorm(sizes[2])

    def forward(self, hidden: Tensor, *others: Any) -> Tensor:
        if hasattr(self, "pre_layernorm"):
            hidden = self.pre_layernorm(hidden)
        for layer in self.seq_layers:
            hidden = layer(hidden, *others)
        return self.layernorm(hidden) if hasattr(self, "layernorm") else hidden


class LMHead(nn.Module):
    def __init__(self, layers: int, vocabulary: int, positions: int, causal: bool, sizes: Any) -> None:
        super().__init__()
        self.word_embedding = nn.Embedding(vocabulary, sizes[2])
        self.position_embedding = nn.Embedding(positions, sizes[2])
        self.token_type_embedding = nn.Embedding(2, sizes[2])
        self.transformer = Transformer(layers, True, False, causal, False, sizes)
        self.lm_head = nn.Linear(sizes[2], vocabulary, bias=False)
        self.lm_head.weight = self.word_embedding.weight
        self.causal = causal

    def forward(self, ids: Tensor, mask: Tensor, types: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        places = torch.arange(ids.shape[1])
        hidden = self.word_embedding(ids) + self.position_embedding(places) + self.token_type_embedding(types)
        hidden = self.transformer(hidden, mask[:, None, None, :] * LOWEST)
        logits = self.lm_head(hidden)
        shown, wanted = (logits[:, :-1], labels[:, 1:]) if self.causal else (logits, labels)
        return F.cross_entropy(shown.flatten(0, 1), wanted.flatten()), logits
