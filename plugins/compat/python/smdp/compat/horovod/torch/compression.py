"""Compressors, which choose the format in which gradients are sent between hosts."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor


class Compressor:
    """Optional base class for a script's own compressors, which have compress() and decompress()."""


class NoneCompressor(Compressor):
    """Sends a tensor unchanged. Base class of the compressors that cast."""

    name = "none"
    wire: ClassVar[torch.dtype | None] = None

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Returns the tensor to send and the dtype for decompress(), or None if there is nothing to undo."""
        if cls.wire is None or tensor.dtype not in (torch.float32, torch.float64):
            return tensor, None
        return tensor.to(cls.wire), tensor.dtype

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Returns the received tensor in the dtype that it had before compress()."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(NoneCompressor):
    """Casts to float16."""

    name = "fp16"
    wire = torch.float16


class _BF16Compressor(NoneCompressor):
    name = "bf16"
    wire = torch.bfloat16


class _Int8Compressor(NoneCompressor):
    """Compression in the core, which carries what it leaves out into the next step."""

    name = "int8"

    @classmethod
    def compress(cls, tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        raise ValueError(
            f"[smdp] compression is {cls.name!r}; allowed here: Compression.none, fp16, bf16. int8 and topk"
            " carry what they leave out into the next step, so only DistributedOptimizer takes them."
        )


class _TopKCompressor(_Int8Compressor):
    name = "topk"


class Compression:
    """The values of compression=: Horovod's none and fp16, and smdp's bf16, int8 and topk."""

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
    """Returns the compressor that is given as a member of Compression, as its name, or as a script's own.

    Raises:
        ValueError: It is none of these.
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
    """Returns the core's name for a member of Compression, or None for a script's own compressor."""
    return next((name for name, known in _KNOWN.items() if known is given), None)
