"""What Horovod and SMDDP have under ``tensorflow.keras``."""

from __future__ import annotations

from smdp.tensorflow import Compression as Compression
from smdp.tensorflow import DistributedOptimizer as DistributedOptimizer
from smdp.tensorflow import allgather as allgather
from smdp.tensorflow import allreduce as allreduce
from smdp.tensorflow import broadcast as broadcast
from smdp.tensorflow import init as init
from smdp.tensorflow import local_rank as local_rank
from smdp.tensorflow import local_size as local_size
from smdp.tensorflow import rank as rank
from smdp.tensorflow import shutdown as shutdown
from smdp.tensorflow import size as size
from smdp.tensorflow.keras import callbacks as callbacks

__all__ = [
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allreduce",
    "broadcast",
    "callbacks",
    "init",
    "local_rank",
    "local_size",
    "rank",
    "shutdown",
    "size",
]
