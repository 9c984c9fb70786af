"""What gradients travel as between hosts."""

from __future__ import annotations


class Compression:
    """Names for compression=, Horovod's two and smdp's."""

    none = "none"
    fp16 = "fp16"
    bf16 = "bf16"
    int8 = "int8"
    topk = "topk"
