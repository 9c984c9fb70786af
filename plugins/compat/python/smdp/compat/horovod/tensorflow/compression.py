"""`horovod.tensorflow.compression`."""

from __future__ import annotations

from smdp.tensorflow import Compression as Compression

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16


class Compressor:
    """What scripts derive their own from, with a compress() and a decompress(); they need not."""
