"""The momentum of gradients that the codec of "topk" does not see; the optimizer then applies none."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class UncodedMomentum:
    """Plain momentum of the gradients that nothing codes; what is coded has its momentum in the codec.

    Args:
        momentum: What the velocity keeps from step to step; 0 for no momentum.
        is_coded: Whether the codec takes a gradient, by index.

    Attributes:
        velocity: Of the gradients that have come, by index.
    """

    def __init__(self, momentum: float, is_coded: Sequence[bool]) -> None:
        self.velocity: dict[int, Tensor] = {}
        self._momentum = momentum
        self._is_coded = is_coded

    def __bool__(self) -> bool:
        return self._momentum != 0

    def add(self, found: Sequence[tuple[int, Tensor]]) -> None:
        """Adds the momentum to the means of a step, each with its index, unless one of them is not finite."""
        if not all(bool(torch.isfinite(grad).all()) for _, grad in found):
            return  # whoever scales the loss skips this step
        for index, grad in found:
            if self._is_coded[index]:
                continue
            if index not in self.velocity:
                self.velocity[index] = torch.zeros_like(grad)
            grad.copy_(self.velocity[index].mul_(self._momentum).add_(grad))

    def rescale(self, factor: float) -> None:
        """Multiplies the velocity, as the loss scale has been."""
        for velocity in self.velocity.values():
            velocity.mul_(factor)
