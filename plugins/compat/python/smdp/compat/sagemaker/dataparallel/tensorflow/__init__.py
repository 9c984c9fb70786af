"""`smdistributed.dataparallel.tensorflow`."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

import smdp
from smdp.compat.sagemaker.dataparallel.tensorflow.gradients import (
    DistributedGradientTape as DistributedGradientTape,
)
from smdp.compat.sagemaker.dataparallel.tensorflow.gradients import (
    DistributedOptimizer as DistributedOptimizer,
)
from smdp.compat.sagemaker.dataparallel.tensorflow.graph import (
    BroadcastGlobalVariablesHook as BroadcastGlobalVariablesHook,
)
from smdp.compat.sagemaker.dataparallel.tensorflow.graph import (
    broadcast_global_variables as broadcast_global_variables,
)
from smdp.tensorflow import Compression as Compression
from smdp.tensorflow import ReduceOp as ReduceOp
from smdp.tensorflow import allreduce as allreduce
from smdp.tensorflow import broadcast as broadcast
from smdp.tensorflow import broadcast_variables as broadcast_variables
from smdp.tensorflow import init as init
from smdp.tensorflow import is_initialized as is_initialized
from smdp.tensorflow import local_rank as local_rank
from smdp.tensorflow import local_size as local_size
from smdp.tensorflow import oob_allreduce as oob_allreduce
from smdp.tensorflow import rank as rank
from smdp.tensorflow import shutdown as shutdown
from smdp.tensorflow import size as size

NoneCompression = Compression.none
FP16Compression = Compression.fp16


def overlap(tensor: Any) -> Any:
    """Returns the tensor unchanged. SMDDP marks an overlap for XLA this way; smdp needs no mark."""
    return tf.identity(tensor)


def get_worker_comm() -> Any:
    """Returns mpi4py's communicator of all ranks. Call it after init().

    Raises:
        ImportError: mpi4py is not installed.
        RuntimeError: The MPI of mpi4py did not start the ranks, and sees a different number of them.
    """
    try:
        from mpi4py import MPI
    except ModuleNotFoundError as error:
        raise ImportError(
            "[smdp] get_worker_comm() returns an mpi4py communicator, but mpi4py is not installed. Use"
            " smdp.world(), or install mpi4py and start with mpirun."
        ) from error
    if MPI.COMM_WORLD.Get_size() != smdp.size():
        raise RuntimeError(
            f"[smdp] get_worker_comm(): MPI has {MPI.COMM_WORLD.Get_size()} ranks, smdp {smdp.size()}."
            " Start the script with the mpirun of the MPI that mpi4py uses, or use smdp.world()."
        )
    return MPI.COMM_WORLD


from smdp.compat.sagemaker.dataparallel.tensorflow import keras as keras  # noqa: E402 - needs the names above
