"""A module whose forward is another function for a while, and whose computed weights are leaves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., Any]) -> Iterator[None]:
    """Has a function called in place of a module's forward."""
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
    """Lets the computed weights of a module be leaves: what leads to them is not the module's own work."""
    made = computed_weights(module)
    vars(module).update({name: tensor.detach().requires_grad_() for name, tensor in made.items()})
    try:
        yield
    finally:
        vars(module).update(made)


def computed_weights(module: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors with gradients that hooks of a module have set, as torch's older weight_norm."""
    found = {name: item for name, item in vars(module).items() if isinstance(item, Tensor)}
    return {name: tensor for name, tensor in found.items() if tensor.requires_grad}
