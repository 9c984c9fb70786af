"""Momentum of the gradients that "topk" does not compress, in place of the optimizer's momentum."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class UncodedMomentum:
    """Plain momentum of the uncompressed gradients. The codec applies it to the compressed ones.

    Args:
        momentum: The factor of the velocity in each step; 0 for no momentum.
        is_coded: Whether the codec compresses a gradient, by index.

    Attributes:
        velocity: The velocity of each gradient seen so far, by index.
    """

    def __init__(self, momentum: float, is_coded: Sequence[bool]) -> None:
        self.velocity: dict[int, Tensor] = {}
        self._momentum = momentum
        self._is_coded = is_coded

    def __bool__(self) -> bool:
        return self._momentum != 0

    def add(self, found: Sequence[tuple[int, Tensor]]) -> None:
        """Adds the momentum to the means of a step, unless one of them is not finite.

        Args:
            found: Pairs of the parameter's index and the mean, which is changed in place.
        """
        if not all(bool(torch.isfinite(grad).all()) for _, grad in found):
            return  # the loss scaler skips this step
        for index, grad in found:
            if self._is_coded[index]:
                continue
            if index not in self.velocity:
                self.velocity[index] = torch.zeros_like(grad)
            grad.copy_(self.velocity[index].mul_(self._momentum).add_(grad))

    def rescale(self, factor: float) -> None:
        """Multiplies the velocity by a change of the loss scale."""
        for velocity in self.velocity.values():
            velocity.mul_(factor)
