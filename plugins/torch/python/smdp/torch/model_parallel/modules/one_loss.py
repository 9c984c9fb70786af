"""The number from which backward starts, given the arguments of `model.backward`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from smdp.torch.model_parallel.job.state import state


def as_one(tensors: Any, grad_tensors: Any) -> Any:
    """Returns the number whose backward equals that of several tensors with the given gradients.

    Raises:
        ValueError: The numbers of tensors and gradients differ, or are 0.
    """
    if grad_tensors is None and isinstance(tensors, Tensor):
        return tensors
    several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    gradients = (
        [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors or [None] * len(several))
    )
    if not several or len(several) != len(gradients):
        raise ValueError(
            f"[smdp] model.backward() got {len(several)} tensors and {len(gradients)} gradients; pass at"
            " least one tensor, and as many gradients as tensors"
        )
    terms = [
        tensor if gradient is None else (tensor * gradient).sum()
        for tensor, gradient in zip(several, gradients, strict=True)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def scaled(loss: Tensor) -> Tensor:
    """Returns a loss times the loss scale of the optimizer, if there is one."""
    found: Tensor = loss if state.optimizer is None else state.optimizer.scale(loss)
    return found
