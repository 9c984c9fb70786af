"""Momentum of the gradients that "topk" does not compress, in place of the optimizer's momentum."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class UncodedMomentum:
    """Plain momentum of the uncompressed gradients. The codec applies it to the compressed ones.

    Args:
        momentum: The factor of the velocity in each step; 0 for no momentum.
        is_coded: Whether the codec compresses a gradient, by index.

    Attributes:
        velocity: The velocity of each gradient seen so far, by index. Where ranks own pieces of the means,
            it is that of this rank's pieces.
    """

    def __init__(self, momentum: float, is_coded: Sequence[bool]) -> None:
        self.velocity: dict[int, list[Tensor]] = {}
        self._momentum = momentum
        self._is_coded = is_coded

    def __bool__(self) -> bool:
        return self._momentum != 0

    def add(
        self, found: Sequence[tuple[int, Sequence[Tensor]]], agree: Callable[[bool], bool] | None = None
    ) -> None:
        """Adds the momentum to the means of a step, unless one of them is not finite.

        Args:
            found: Pairs of the parameter's index and the pieces of its mean, which are changed in place.
            agree: Returns whether something holds on all ranks, if each has other pieces.
        """
        is_finite = all(bool(torch.isfinite(piece).all()) for _, pieces in found for piece in pieces)
        if not (is_finite if agree is None else agree(is_finite)):
            return  # the loss scaler skips this step
        for index, pieces in found:
            if self._is_coded[index]:
                continue
            if index not in self.velocity:
                self.velocity[index] = [torch.zeros_like(piece) for piece in pieces]
            for velocity, piece in zip(self.velocity[index], pieces, strict=True):
                piece.copy_(velocity.mul_(self._momentum).add_(piece))

    def rescale(self, factor: float) -> None:
        """Multiplies the velocity by a change of the loss scale."""
        for velocities in self.velocity.values():
            for velocity in velocities:
                velocity.mul_(factor)
