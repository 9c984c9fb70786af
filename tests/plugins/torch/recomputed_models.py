"""Models whose blocks are recomputed, and what their forward keeps for backward."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

WIDTH, WIDE, ROWS = 16, 256, 32


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(WIDTH, WIDE)
        self.narrow = nn.Linear(WIDE, WIDTH)
        self.dropout = nn.Dropout(0.3)
        self.runs = 0

    def forward(self, hidden: Tensor) -> Tensor:
        self.runs += 1
        return hidden + self.narrow(self.dropout(torch.tanh(self.wide(hidden))))  # type: ignore[no-any-return]


class Row(nn.Module):
    """Five layers, which notes the distinct storages that they keep, other than parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(5))
        self.kept: dict[int, torch.UntypedStorage] = {}

    def forward(self, x: Tensor) -> Tensor:
        with saved_tensors_hooks(self._keep, lambda tensor: tensor):
            for layer in self.layers:
                x = layer(x)
        return x

    def _keep(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if not any(storage._cdata == each.untyped_storage()._cdata for each in self.parameters()):
            self.kept[storage._cdata] = storage
        return tensor

    def take_kept(self) -> tuple[int, int]:
        """Returns the number of tensors kept since the last call, and their bytes."""
        found = len(self.kept), sum(storage.nbytes() for storage in self.kept.values())
        self.kept.clear()
        return found


def gradients(model: nn.Module, loss_of: Callable[[nn.Module], Tensor]) -> list[Tensor]:
    """Returns the loss and the gradients of a model with the same random numbers each time."""
    model.zero_grad()
    torch.manual_seed(1)
    loss = loss_of(model)
    loss.backward()
    return [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]


def are_same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))
