"""`horovod.tensorflow.compression`."""

from __future__ import annotations

from smdp.tensorflow import Compression as Compression

NoneCompressor = Compression.none
FP16Compressor = Compression.fp16


class Compressor:
    """Optional base class for a script's own compressors, which have compress() and decompress()."""
