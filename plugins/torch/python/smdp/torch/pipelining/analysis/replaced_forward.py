"""Temporarily replaces a module's forward, or makes its computed weights leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Replaces a module's forward by a function while the context is open."""
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if before is not None:
            module.forward = before


@contextmanager
def without_graphs(module: nn.Module) -> Iterator[None]:
    """Makes a module's computed weights leaves, because computing them is not the module's own work."""
    made = computed_weights(module)
    vars(module).update({name: tensor.detach().requires_grad_() for name, tensor in made.items()})
    try:
        yield
    finally:
        vars(module).update(made)


def computed_weights(module: nn.Module) -> dict[str, Tensor]:
    """Returns tensors with gradients that a module's hooks have set, as torch's older weight_norm does."""
    found = {name: item for name, item in vars(module).items() if isinstance(item, Tensor)}
    return {name: tensor for name, tensor in found.items() if tensor.requires_grad}
