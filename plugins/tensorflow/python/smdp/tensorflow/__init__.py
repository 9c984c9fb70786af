"""The TensorFlow 2 plugin. Its functions have the names and arguments that SMDDP and Horovod scripts use.

Example:
    >>> import smdp.tensorflow as sdp
    >>> sdp.init()                                                          # doctest: +SKIP
    >>> tape = sdp.DistributedGradientTape(tape)                            # doctest: +SKIP
    >>> sdp.broadcast_variables(model.weights, root_rank=0)                 # doctest: +SKIP
"""

from __future__ import annotations

from smdp._frameworks import require

require("smdp.tensorflow", "tensorflow")

from smdp import init as init
from smdp import is_initialized as is_initialized
from smdp import local_rank as local_rank
from smdp import local_size as local_size
from smdp import rank as rank
from smdp import size as size
from smdp.tensorflow.allreduce import allreduce as allreduce
from smdp.tensorflow.allreduce import grouped_allreduce as grouped_allreduce
from smdp.tensorflow.allreduce import oob_allreduce as oob_allreduce
from smdp.tensorflow.collectives import allgather as allgather
from smdp.tensorflow.collectives import alltoall as alltoall
from smdp.tensorflow.collectives import barrier as barrier
from smdp.tensorflow.collectives import broadcast as broadcast
from smdp.tensorflow.collectives import reducescatter as reducescatter
from smdp.tensorflow.compression import Compression as Compression
from smdp.tensorflow.gradient_tape import DistributedGradientTape as DistributedGradientTape
from smdp.tensorflow.objects import allgather_object as allgather_object
from smdp.tensorflow.objects import broadcast_object as broadcast_object
from smdp.tensorflow.optimizer import DistributedOptimizer as DistributedOptimizer
from smdp.tensorflow.reduce_op import ReduceOp as ReduceOp
from smdp.tensorflow.sync_batch_norm import SyncBatchNormalization as SyncBatchNormalization
from smdp.tensorflow.variables import broadcast_variables as broadcast_variables
from smdp.tensorflow.world import shutdown as shutdown

# Horovod's names.
Average = ReduceOp.AVERAGE
Sum = ReduceOp.SUM
Min = ReduceOp.MIN
Max = ReduceOp.MAX
Product = ReduceOp.PRODUCT

__all__ = [
    "Average",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "grouped_allreduce",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "oob_allreduce",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]
