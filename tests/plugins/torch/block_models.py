"""A small transformer-like model, its loss on one rank or on all, and one-process references for it."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.utils.checkpoint import checkpoint

WORDS = 50


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.remembers = False

    def inner(self, hidden: Tensor) -> Tensor:
        normal = self.norm(hidden.to(self.norm.weight.dtype)).to(self.up.weight.dtype)
        found: Tensor = self.down(torch.tanh(self.up(normal)))
        return found

    def forward(self, hidden: Tensor) -> Tensor:
        if self.remembers:
            return hidden + checkpoint(self.inner, hidden, use_reentrant=False)
        return hidden + self.inner(hidden)


class Model(nn.Module):
    """Has tied weights, a buffer, and a parameter with a first dimension of 1."""

    def __init__(self, width: int = 16, blocks: int = 3) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.start = Parameter(torch.randn(1, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, WORDS, bias=False)
        self.head.weight = self.embedding.weight
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))
        self.around = False  # checkpoints around blocks

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen += 1 + dist.get_rank()
        hidden = self.embedding(tokens) + self.start
        for block in self.blocks:
            hidden = checkpoint(block, hidden, use_reentrant=False) if self.around else block(hidden)
        found: Tensor = self.head(self.norm(hidden))
        return found


def loss_of(model: nn.Module, step: int, rank: int) -> Tensor:
    tokens = torch.randint(WORDS, (2, 9), generator=torch.Generator().manual_seed(1000 * step + rank))
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def mean_loss(model: nn.Module, step: int, ranks: int) -> Tensor:
    """Returns the loss of one process on the batches of all ranks."""
    return torch.stack([loss_of(model, step, rank) for rank in range(ranks)]).mean()


def whole(tensor: Tensor) -> Tensor:
    detached = tensor.detach()
    return detached.full_tensor() if isinstance(detached, DTensor) else detached


def difference(model: nn.Module, expected: nn.Module) -> float:
    """Returns the largest difference between parameters, relative to the largest value."""
    found = 0.0
    for (name, one), (same, other) in zip(model.named_parameters(), expected.named_parameters(), strict=True):
        assert name == same
        found = max(found, float((whole(one) - other.detach()).abs().max()))
    return found
