"""A model whose parameters are used in different ways, optimizers, and steps that tests of sharding train."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch import DistributedDataParallel, ShardedOptimizer

Pair = list[tuple[DistributedDataParallel, Optimizer]]
Maker = Callable[[Iterable[Parameter]], Optimizer]

# Every elementwise optimizer of torch.optim, each with options that change its state.
OPTIMIZERS: dict[str, Maker] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2, amsgrad=True, foreach=False),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=1e-2),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=1e-2),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=1e-2),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, lr_decay=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, centered=True, momentum=0.5),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=1e-3),
}


class Net(nn.Module):
    """Has tied weights, a parameter without a gradient, and one that only rank 0 uses."""

    def __init__(self, width: int = 200) -> None:
        super().__init__()
        self.embedding = nn.Embedding(300, width)
        self.norm = nn.LayerNorm(width)
        self.hidden = nn.Linear(width, width)
        self.often = nn.Linear(width, width)
        self.never = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.hidden(self.norm(self.embedding(tokens))))
        if dist.get_rank() == 0:
            hidden = hidden + self.often(hidden)
        return hidden @ self.embedding.weight.T


def made(optimizer: Maker, scope: str | None) -> tuple[DistributedDataParallel, Optimizer]:
    """Returns a model and its optimizer, sharded unless scope is None."""
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    plain = optimizer(model.parameters())
    return model, plain if scope is None else ShardedOptimizer(plain, model, scope)


def loss_of(model: nn.Module, step: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    tokens = torch.randint(300, (2, 9), generator=generator)
    return nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())


def values(model: nn.Module) -> list[Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def differences(one: Iterable[Tensor], other: Iterable[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


def train(model: DistributedDataParallel, optimizer: Optimizer, steps: range) -> None:
    """Accumulates under no_sync() in some steps, and clears with zeros in some."""
    for step in steps:
        optimizer.zero_grad(set_to_none=step % 3 != 1)
        if step % 2:
            with model.no_sync():
                loss_of(model, 100 + step).backward()
        loss_of(model, step).backward()
        optimizer.step()


def adamw(parameters: Any) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def sgd(parameters: Any) -> Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def pair(make: Callable[[], nn.Module], optimizer: Maker, scope: str = "world") -> Pair:
    """Returns an unsharded and a sharded model with their optimizers."""
    made: Pair = []
    for is_sharded in (False, True):
        torch.manual_seed(0)
        model = DistributedDataParallel(make())
        plain = optimizer(model.parameters())
        made.append((model, ShardedOptimizer(plain, model, scope) if is_sharded else plain))
    return made


def linear() -> nn.Module:
    return nn.Linear(8, 1)


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 50), nn.Linear(50, 3))


def backward(model: nn.Module, step: int = 0) -> None:
    generator = torch.Generator().manual_seed(10 * step + dist.get_rank())
    dtype = next(model.parameters()).dtype
    model(torch.randn(4, 8, generator=generator).to(dtype)).float().square().mean().backward()


def differ(both: Pair, steps: int = 3) -> float:
    """Returns by how much the models differ after some steps."""
    for model, optimizer in both:
        for step in range(steps):
            optimizer.zero_grad()
            backward(model, step)
            optimizer.step()
    return differences(*([value for value in values(model) if value.numel()] for model, _ in both))


def collected(optimizer: Optimizer) -> dict[str, Any]:
    assert isinstance(optimizer, ShardedOptimizer)
    optimizer.consolidate(to=0)
    box = [optimizer.state_dict() if dist.get_rank() == 0 else {}]
    dist.broadcast_object_list(box, src=0)
    return box[0]
