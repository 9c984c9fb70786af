"""Gradients with SMDDP's arguments. SMDDP makes embedding gradients dense whatever sparse_as_dense is."""

from __future__ import annotations

from typing import Any

import smdp.tensorflow as sdp
from smdp.compat.sagemaker.dataparallel.tensorflow.graph import distribute


class DistributedGradientTape(sdp.DistributedGradientTape):
    """smdp.tensorflow.DistributedGradientTape with SMDDP's arguments; sparse_as_dense is not used."""

    def __init__(
        self,
        gradtape: Any,
        device_dense: str = "",
        device_sparse: str = "",
        compression: Any = sdp.Compression.none,
        sparse_as_dense: bool = False,
        op: Any = sdp.ReduceOp.AVERAGE,
        **options: Any,
    ) -> None:
        super().__init__(gradtape, compression=compression, sparse_as_dense=True, op=op, **options)


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = sdp.Compression.none,
    sparse_as_dense: bool = False,
    op: Any = sdp.ReduceOp.AVERAGE,
    bucket_cap_mb: float = 25,
    **options: Any,
) -> Any:
    """Makes an optimizer of tf.compat.v1 or Keras 3 average gradients. `sparse_as_dense` is not used.

    Raises:
        ValueError: The optimizer is of tf.compat.v1 and is distributed already, or does not support one of
            the options.
    """
    return distribute(optimizer, compression, True, op, bucket_cap_mb=bucket_cap_mb, **options)
