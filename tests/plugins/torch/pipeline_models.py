"""Small models, and the training of one process that a pipeline's is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

WORDS = 50
LENGTH = 12
WIDTH = 32


class Block(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.wide = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        wide = functional.gelu(self.wide(self.norm(hidden)))
        return hidden + self.dropout(self.narrow(wide))  # type: ignore[no-any-return]


class Language(nn.Module):
    """A chain of blocks, with what makes chains hard: a glue parameter, a mask, a skip over all blocks."""

    def __init__(self, blocks: int = 8, *, tied: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = nn.ModuleList(Block(dropout) for _ in range(blocks))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.dropout = nn.Dropout(dropout)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        hidden = self.dropout(self.words(ids) + self.places[: ids.shape[1]])
        if mask is not None:
            hidden = hidden * mask[..., None]
        first = None
        for block in self.blocks:
            hidden = block(hidden)
            first = hidden if first is None else first
        return {"logits": self.head(self.norm(hidden + first))}


def language_loss(output: dict[str, Tensor], microbatch: dict[str, Tensor]) -> Tensor:
    return functional.cross_entropy(output["logits"].flatten(0, 1), microbatch["ids"].flatten())


def batches(count: int, size: int = 16, length: int = LENGTH, seed: int = 1) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "ids": torch.randint(0, WORDS, (size, length), generator=generator),
            "mask": torch.ones(size, length),
        }
        for _ in range(count)
    ]


def made(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def adam(module: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), lr=1e-2)


def train_alone(
    model: nn.Module,
    steps: list[dict[str, Tensor]],
    microbatches: int,
    loss_fn: Callable[..., Tensor] = language_loss,
    call: Callable[[nn.Module, Any], Any] = lambda model, part: model(**part),
) -> list[float]:
    """Train one process as a pipeline does: microbatch after microbatch, then a step."""
    optimizer = adam(model)
    losses = []
    for batch in steps:
        optimizer.zero_grad()
        found = []
        for index in range(microbatches):
            part = {name: item.chunk(microbatches)[index] for name, item in batch.items()}
            loss = loss_fn(call(model, part), part)
            (loss / microbatches).backward()
            found.append(loss.item())
        optimizer.step()
        losses.append(sum(found) / microbatches)
    return losses


def train_pipeline(
    pipe: Any, steps: list[dict[str, Tensor]], loss_fn: Callable[..., Tensor] = language_loss
) -> list[float]:
    optimizer = adam(pipe)
    losses = []
    for batch in steps:
        optimizer.zero_grad()
        losses.append(pipe.train_step(batch, loss_fn).item())
        optimizer.step()
    return losses


def differences(pipe: nn.Module, alone: nn.Module) -> dict[str, float]:
    """Give, for parameters that have not the same bits, how far they are apart."""
    expected = dict(alone.named_parameters())
    found = dict(pipe.named_parameters())
    assert found, f"rank {dist.get_rank()} has no parameters"
    return {
        name: (parameter - expected[name]).abs().max().item()
        for name, parameter in found.items()
        if not torch.equal(parameter, expected[name])
    }


class Layer(nn.Module):
    """The smallest part of a chain: (batch, WIDTH) in and out."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + torch.tanh(self.linear(hidden))


class Chain(nn.Module):
    """Layers in a row, and a head with one number per row; models of tests put their own code around them."""

    def __init__(self, layers: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)  # type: ignore[no-any-return]


def rows(count: int = 2, size: int = 8, seed: int = 1, **options: Any) -> list[dict[str, Tensor]]:
    """Batches for chains: x of (size, WIDTH), y of (size, 1)."""
    generator = torch.Generator().manual_seed(seed)
    return [
        {
            "x": torch.randn(size, WIDTH, generator=generator).to(**options),
            "y": torch.randn(size, 1, generator=generator).to(**options),
        }
        for _ in range(count)
    ]


def square_loss(output: Tensor, microbatch: dict[str, Tensor]) -> Tensor:
    return functional.mse_loss(output, microbatch["y"])


def only_x(model: nn.Module, part: dict[str, Tensor]) -> Any:
    return model(part["x"])


def assert_trains_as_one(
    make: Callable[[], nn.Module],
    steps: list[dict[str, Tensor]] | None = None,
    loss_fn: Callable[..., Tensor] = square_loss,
    *,
    schedules: Iterable[str] = ("1f1b",),
    microbatches: int = 4,
    within: float = 0.0,
    call: Callable[[nn.Module, Any], Any] = only_x,
    **options: Any,
) -> Any:
    """Compare losses, parameters and buffers of pipelines over all ranks with one process.

    Args:
        make: Makes the model.
        steps: Batches, one for each step.
        loss_fn: Of both.
        schedules: One pipeline for each.
        microbatches: Per step.
        within: How far parameters may be apart; 0: the same bits.
        call: Calls the model in one process.
        **options: Of pipeline().

    Returns:
        The last pipeline.
    """
    import smdp.torch

    steps = steps or rows()
    alone = made(make)
    expected = train_alone(alone, steps, microbatches, loss_fn, call)
    buffers = dict(alone.named_buffers())
    pipe: Any = None
    for schedule in schedules:
        where = f"{getattr(make, '__name__', make)} under {schedule}"
        pipe = smdp.torch.pipeline(
            made(make),
            microbatches=microbatches,
            schedule=schedule,
            **{"stages": dist.get_world_size(), "example_inputs": steps[0], **options},
        )
        losses = train_pipeline(pipe, steps, loss_fn)
        apart = {name: far for name, far in differences(pipe, alone).items() if not far <= within}
        assert apart == {}, f"{where}: {apart}"
        assert all(abs(a - b) <= 1e-6 * max(1, abs(b)) for a, b in zip(losses, expected, strict=True)), where
        for name, buffer in pipe.named_buffers():
            assert torch.equal(buffer, buffers[name]), f"{where}: {name}"
    return pipe
