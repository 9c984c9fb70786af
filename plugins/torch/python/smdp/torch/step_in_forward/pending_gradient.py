"""What stands for a gradient while its mean is on its way."""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor


class PendingGradient(Tensor):
    """Has a parameter's shape, dtype and device, and no values: whatever reads them raises RuntimeError."""

    @staticmethod
    def __new__(cls, parameter: Tensor) -> PendingGradient:
        """Make one that a parameter's `.grad` accepts."""
        made: PendingGradient = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, strides=parameter.stride(), dtype=parameter.dtype, device=parameter.device
        )
        return made

    def __repr__(self) -> str:
        """Name it; Tensor's would read values."""
        return f"PendingGradient({tuple(self.shape)}, {self.dtype})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        """Refuse every operation."""
        raise RuntimeError(
            f"[smdp] {func}: this gradient is still being averaged (StepInForward). Between backward() and"
            " the next forward it cannot be read, clipped, unscaled or added to. Accumulate under no_sync(),"
            " or call StepInForward.settle() before."
        )
