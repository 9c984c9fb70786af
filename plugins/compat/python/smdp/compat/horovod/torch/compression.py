"""What gradients travel as between hosts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor


class Compressor:
    """What scripts derive their own from, with a compress() and a decompress(); they need not."""


class NoneCompressor(Compressor):
    """Sends a tensor as it is; the base of those that cast."""

    name = "none"
    wire: ClassVar[torch.dtype | None] = None

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Give the tensor to send, and what decompress() needs."""
        if cls.wire is None or tensor.dtype not in (torch.float32, torch.float64):
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Give the received tensor the dtype that it had before compress()."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(NoneCompressor):
    """Casts to float16."""

    name = "fp16"
    wire = torch.float16


class _BF16Compressor(NoneCompressor):
    name = "bf16"
    wire = torch.bfloat16


class _Int8Compressor(NoneCompressor):
    """Of the core, which keeps what it leaves out for the next step."""

    name = "int8"

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        raise ValueError(
            f"[smdp] compression is {cls.name!r}; allowed here: Compression.none, fp16, bf16. int8 and topk"
            " keep what they leave out for the next step, and are for DistributedOptimizer."
        )


class _TopKCompressor(_Int8Compressor):
    name = "topk"


class Compression:
    """What compression= takes, Horovod's two and smdp's."""

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = _BF16Compressor
    int8 = _Int8Compressor
    topk = _TopKCompressor


_KNOWN = {
    known.name: known
    for known in (NoneCompressor, FP16Compressor, _BF16Compressor, _Int8Compressor, _TopKCompressor)
}


def compressor(given: Any) -> Any:
    """Give what compresses: one of Compression, also by its name, or a script's own.

    Raises:
        ValueError: It is neither.
    """
    if isinstance(given, str) and given in _KNOWN:
        return _KNOWN[given]
    if all(callable(getattr(given, name, None)) for name in ("compress", "decompress")):
        return given
    raise ValueError(
        f"[smdp] compression is {given!r}; allowed: Compression.{', '.join(_KNOWN)}, or a class or object"
        " with compress() and decompress()."
    )


def name_in_core(given: Any) -> str | None:
    """Give the core's name of one of Compression; None for a script's own."""
    return next((name for name, known in _KNOWN.items() if known is given), None)
