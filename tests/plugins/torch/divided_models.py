"""Models that are divided over ranks in tests, and their comparison with one process."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.tensor_parallelism.actions import blocks
from smdp.torch.tensor_parallelism.actions.linears import Columns
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.tensor_parallel import divide_model

VOCABULARY, WIDTH, HEADS = 31, 16, 4
PLAN = {
    "embedding": "embedding_rowwise",
    "blocks.*.query": "colwise",
    "blocks.*.key": "colwise",
    "blocks.*.value": "colwise",
    "blocks.*.out": "rowwise",
    "blocks.*.up": "colwise",
    "blocks.*.down": "rowwise",
    "head": "colwise_gather_output",
}


class Block(nn.Module):
    """Attention and a linear part, as in transformers: (batch, length, WIDTH) in and out."""

    def __init__(self, dropout: float, key_heads: int) -> None:
        super().__init__()
        self.head_dim = WIDTH // HEADS
        self.first_norm, self.second_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.key, self.value = (nn.Linear(WIDTH, key_heads * self.head_dim) for _ in range(2))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, _ = hidden.shape
        normed = self.first_norm(hidden)
        query, key, value = (
            layer(normed).view(batch, length, -1, self.head_dim).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(
            query, key, value, dropout_p=dropout, is_causal=True, enable_gqa=True
        )
        attended = self.out(attended.transpose(1, 2).reshape(batch, length, -1))
        hidden = hidden + F.dropout(attended, self.dropout, self.training)
        inner = F.dropout(F.gelu(self.up(self.second_norm(hidden))), self.dropout, self.training)
        return hidden + self.down(inner)


class Model(nn.Module):
    """A small language model; its head and embedding may be tied, and heads of keys may be few."""

    def __init__(
        self, blocks: int = 2, dropout: float = 0.0, *, tied: bool = False, key_heads: int = HEADS
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(dropout, key_heads) for _ in range(blocks))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        if tied:
            self.head.weight = self.embedding.weight

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)  # type: ignore[no-any-return]


def loss_of(model: nn.Module, tokens: Tensor, **options: Any) -> Tensor:
    logits = model(tokens)[:, :-1]
    return F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1), **options)


def own_part(whole: Tensor, parameter: Tensor) -> Tensor:
    """The part of a tensor that belongs to this rank's part of a parameter."""
    cut = cut_of(parameter)
    return whole if cut is None or cut.slices is None else cut.slices.take(whole)


def farthest(model: nn.Module, alone: nn.Module, *, gradients: bool = True) -> float:
    """The largest difference of a parameter or a gradient from those of one process."""
    expected = dict(alone.named_parameters())
    found = [0.0]
    for name, parameter in model.named_parameters():
        one = expected[name]
        pairs = [(parameter, one), *([(parameter.grad, one.grad)] if gradients else [])]
        found += [
            (mine - own_part(theirs, parameter)).abs().max().item()
            for mine, theirs in pairs
            if mine is not None and theirs is not None and mine.numel()
        ]
    return max(found)


class Fused(nn.Module):
    """Queries of two heads and a key head in one layer, as with multi-query attention; returns a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.both = nn.Linear(5, 12)

    def forward(self, inputs: Tensor) -> Tensor:
        """Returns the mean over the inputs of a sum over this rank's heads."""
        found = self.both(inputs)
        queries, key = found[..., :-4].unflatten(-1, (-1, 4)), found[..., -4:].unsqueeze(-2)
        return ((queries * key).sum(-1) ** 2).sum(-1).mean()


def divide_fused(model: Fused) -> Fused:
    """Divides the queries over two ranks, both of which hold the key head."""
    heads = (blocks.Block(8, 2), blocks.Block(4, 1, may_repeat=True))
    plan = TensorParallelPlan("Fused", 2, "a test", {"both": Columns(heads)})
    divide_model(model, plan, ParallelMesh.of_world(tp=2))
    return model
