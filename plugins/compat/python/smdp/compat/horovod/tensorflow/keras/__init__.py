"""`horovod.tensorflow.keras`."""

from __future__ import annotations

from typing import Any

import smdp.compat.horovod.tensorflow as hvd
from smdp.compat.horovod.refusals import no_attribute
from smdp.compat.horovod.tensorflow import *  # noqa: F403
from smdp.tensorflow import Compression
from smdp.tensorflow.keras import allgather as allgather  # type: ignore[assignment]
from smdp.tensorflow.keras import allreduce as allreduce
from smdp.tensorflow.keras import broadcast as broadcast  # type: ignore[assignment]
from smdp.tensorflow.keras import callbacks as callbacks
from smdp.tensorflow.keras import load_model as load_model
from smdp.tensorflow.keras import reducescatter as reducescatter  # type: ignore[assignment]


def DistributedOptimizer(  # type: ignore[no-redef]
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: Any = hvd.Average,
    **options: Any,
) -> Any:
    """Makes an optimizer average gradients; horovod.tensorflow's function with Keras's order of arguments."""
    return hvd.DistributedOptimizer(
        optimizer, compression=compression, sparse_as_dense=sparse_as_dense, op=op, **options
    )


def __getattr__(name: str) -> Any:
    if name == "global_process_set":
        return hvd.global_process_set
    no_attribute("horovod.tensorflow.keras", name)
