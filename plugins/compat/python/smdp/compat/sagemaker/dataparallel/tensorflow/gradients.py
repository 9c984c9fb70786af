"""SMDDP makes gradients of embeddings dense, whatever sparse_as_dense says."""

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
    """Make an optimizer, of tf.compat.v1 or Keras 3, average gradients; sparse_as_dense is not used.

    Raises:
        ValueError: It is one of tf.compat.v1 and distributed already, or there are options it cannot take.
    """
    return distribute(optimizer, compression, True, op, bucket_cap_mb=bucket_cap_mb, **options)
