"""A placeholder for a gradient that is still being averaged."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor


class PendingGradient(Tensor):
    """Has the shape, dtype and device of a parameter, but no values. Reading them raises RuntimeError."""

    @staticmethod
    def __new__(cls, parameter: Tensor) -> PendingGradient:
        """Creates a placeholder that the parameter accepts as its `.grad`."""
        made: PendingGradient = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        return made

    def __repr__(self) -> str:
        """Returns shape and dtype, because Tensor's method would read values."""
        return f"PendingGradient({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Refuses every operation."""
        raise RuntimeError(
            f"[smdp] {func}: this gradient is still being averaged (StepInForward). Between backward() and"
            " the next forward it cannot be read, clipped, unscaled or added to. Call StepInForward.settle()"
            " first, or use no_sync() to accumulate gradients."
        )
