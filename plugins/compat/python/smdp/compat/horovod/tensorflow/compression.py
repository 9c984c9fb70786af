"""`horovod.tensorflow.compression`."""

from __future__ import annotations

from typing import Any

from smdp.tensorflow import Compression as Compression

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16


class Compressor:
    """What scripts derive their own from."""

    @staticmethod
    def compress(tensor: Any) -> tuple[Any, Any]:
        """Give the tensor to send, and what decompress() needs."""
        raise TypeError("[smdp] a compressor of one's own needs a compress(tensor).")

    @staticmethod
    def decompress(tensor: Any, ctx: Any) -> Any:
        """Give the received tensor as it was before compress()."""
        raise TypeError("[smdp] a compressor of one's own needs a decompress(tensor, ctx).")
