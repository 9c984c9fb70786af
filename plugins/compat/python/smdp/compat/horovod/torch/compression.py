"""What gradients travel as between hosts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_WIRE = {"none": None, "fp16": torch.float16, "bf16": torch.bfloat16}


class Compressor(str):
    """A name for compression=, and what scripts call by themselves.

    Scripts may have their own: a class or object with compress() and decompress(), derived from this or not.
    """

    def compress(self, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Give the tensor to send, and what decompress() needs.

        Raises:
            ValueError: It needs more than one tensor.
        """
        if self not in _WIRE:
            raise ValueError(
                f"[smdp] compression is {str(self)!r}; allowed here: Compression.none, fp16, bf16. int8 and"
                " topk keep what they leave out for the next step, and are for DistributedOptimizer."
            )
        wire = _WIRE[self]
        if wire is None or tensor.dtype not in (torch.float32, torch.float64):
            return tensor, None
        return tensor.to(wire), tensor.dtype

    def decompress(self, tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Give the received tensor the dtype that it had before compress()."""
        return tensor if ctx is None else tensor.to(ctx)


def compressor(given: Any) -> Any:
    """Give what compresses: a script's own, else the one of this name."""
    return given if has_own_code(given) else Compressor(given)


def has_own_code(given: Any) -> bool:
    """Tell whether the core does not know it by name."""
    if type(given) is Compressor:
        return False
    return all(callable(getattr(given, name, None)) for name in ("compress", "decompress"))


NoneCompressor = Compressor("none")
FP16Compressor = Compressor("fp16")


class Compression:
    """Names for compression=, Horovod's two and smdp's."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = Compressor("bf16")
    int8 = Compressor("int8")
    topk = Compressor("topk")
