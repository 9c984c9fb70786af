"""Modules without a rule or a plan, whose division is derived or refused."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH, INNER, HEADS = 16, 24, 4


class Gated(nn.Module):
    """A gated linear part with a residual connection."""

    def __init__(self, inner: int = INNER) -> None:
        super().__init__()
        self.up, self.gate = nn.Linear(WIDTH, inner), nn.Linear(WIDTH, inner)
        self.down = nn.Linear(inner, WIDTH)

    def between(self, tensor: Tensor) -> Tensor:
        return tensor

    def forward(self, hidden: Tensor) -> Tensor:
        inner = self.between(F.silu(self.gate(hidden)) * self.up(hidden))
        return hidden + F.dropout(self.down(F.dropout(inner, 0.1, self.training)), 0.1, self.training)


class Skipped(Gated):
    """Skips its linear part for some rows, at random."""

    def forward(self, hidden: Tensor) -> Tensor:
        rows = torch.rand(len(hidden), 1, 1) < 0.5 if self.training else 1.0
        return hidden + rows * (super().forward(hidden) - hidden)


class Normed(Gated):
    """A sum over all inner features, which slices lack."""

    def between(self, tensor: Tensor) -> Tensor:
        return F.normalize(tensor, dim=-1)


class Scaled(Gated):
    """A parameter that is as wide as all inner features."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(INNER))

    def between(self, tensor: Tensor) -> Tensor:
        return tensor * self.scale


class Tempered(Gated):
    """A parameter of which each rank computes a part of the gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))

    def between(self, tensor: Tensor) -> Tensor:
        return tensor * self.temperature


class Direct(Gated):
    """Code that reads the weight of a layer without calling it."""

    def forward(self, hidden: Tensor) -> Tensor:
        inner = F.gelu(F.linear(hidden, self.up.weight, self.up.bias)) * self.gate(hidden)
        return F.linear(inner, self.down.weight)


class Fused(nn.Module):
    """Attention with query | key | value in one layer, and a width in an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.embed_dim = HEADS, WIDTH
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def parts(self, tensor: Tensor) -> list[Tensor]:
        batch, length, _ = tensor.shape
        parts = tensor.split(self.embed_dim, -1)
        return [each.view(batch, length, self.n_head, -1).transpose(1, 2) for each in parts]

    def forward(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        query, key, value = self.parts(self.qkv(hidden))
        weights = self.drop((query @ key.transpose(-1, -2) / 2).softmax(-1))
        return self.proj((weights @ value).transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Interleaved(Fused):
    """The query, key and value of one head after those of another one."""

    def parts(self, tensor: Tensor) -> list[Tensor]:
        batch, length, _ = tensor.shape
        parts = tensor.view(batch, length, self.n_head, 3, -1).unbind(3)
        return [each.transpose(1, 2) for each in parts]


class Grouped(nn.Module):
    """Attention with fewer key heads than query heads, and norms of heads."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads, self.head_dim = HEADS, HEADS // 2, WIDTH // HEADS
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)
        self.q_norm, self.k_norm = nn.LayerNorm(self.head_dim), nn.LayerNorm(self.head_dim)

    def forward(self, hidden: Tensor) -> Tensor:
        shape = (*hidden.shape[:2], -1, self.head_dim)
        query = self.q_norm(self.q(hidden).view(shape)).transpose(1, 2)
        key = self.k_norm(self.k(hidden).view(shape)).transpose(1, 2)
        value = self.v(hidden).view(shape).transpose(1, 2)
        key, value = (each.repeat_interleave(self.num_heads // self.num_kv_heads, 1) for each in (key, value))
        dropout = 0.1 if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.o(attended.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


class Inner(nn.Module):
    """The part of attention before its output, in a module of its own, as in BERT."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.all_width = HEADS, WIDTH
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, hidden: Tensor) -> Tensor:
        shape = (*hidden.shape[:2], self.num_heads, -1)
        query, key, value = (
            each(hidden).view(shape).transpose(1, 2) for each in (self.query, self.key, self.value)
        )
        dropout = 0.1 if self.training else 0.0
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout)
        return attended.transpose(1, 2).reshape(*hidden.shape[:2], self.all_width)


class Nested(nn.Module):
    """Attention of two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.output = Inner(), nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + self.output(self.inner(hidden))  # type: ignore[no-any-return]


def chain() -> nn.Sequential:
    return nn.Sequential(
        *(nn.Linear(WIDTH, INNER), nn.ReLU(), nn.Linear(INNER, INNER), nn.Tanh()),
        *(nn.Linear(INNER, INNER), nn.Dropout(0.1), nn.Linear(INNER, WIDTH)),
    )


def encoder(**options: object) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, INNER, batch_first=True, **options)  # type: ignore[arg-type]
    return nn.TransformerEncoder(layer, 2)
