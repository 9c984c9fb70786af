"""What `model.backward` is given, as one number."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def as_one(tensors: Any, grad_tensors: Any) -> Any:
    """Give the number whose backward is that of several tensors with these gradients.

    Raises:
        ValueError: There are not as many gradients as tensors, or none.
    """
    if grad_tensors is None and isinstance(tensors, Tensor):
        return tensors
    several = [tensors] if isinstance(tensors, Tensor) else list(tensors)
    gradients = (
        [grad_tensors] if isinstance(grad_tensors, Tensor) else list(grad_tensors or [None] * len(several))
    )
    if not several or len(several) != len(gradients):
        raise ValueError(
            f"[smdp] model.backward() got {len(several)} tensors and {len(gradients)} gradients; allowed: as"
            " many gradients as tensors, and at least one"
        )
    terms = [
        tensor if gradient is None else (tensor * gradient).sum()
        for tensor, gradient in zip(several, gradients, strict=True)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total
