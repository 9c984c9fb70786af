"""The functions that Horovod and SMDDP have in their ``tensorflow.keras``."""

from __future__ import annotations

from smdp.tensorflow import Average as Average
from smdp.tensorflow import Compression as Compression
from smdp.tensorflow import DistributedOptimizer as DistributedOptimizer
from smdp.tensorflow import Max as Max
from smdp.tensorflow import Min as Min
from smdp.tensorflow import Product as Product
from smdp.tensorflow import Sum as Sum
from smdp.tensorflow import allgather_object as allgather_object
from smdp.tensorflow import barrier as barrier
from smdp.tensorflow import broadcast_object as broadcast_object
from smdp.tensorflow import broadcast_variables as broadcast_variables
from smdp.tensorflow import init as init
from smdp.tensorflow import is_initialized as is_initialized
from smdp.tensorflow import local_rank as local_rank
from smdp.tensorflow import local_size as local_size
from smdp.tensorflow import rank as rank
from smdp.tensorflow import shutdown as shutdown
from smdp.tensorflow import size as size
from smdp.tensorflow.keras import callbacks as callbacks
from smdp.tensorflow.keras.collectives import allgather as allgather
from smdp.tensorflow.keras.collectives import allreduce as allreduce
from smdp.tensorflow.keras.collectives import broadcast as broadcast
from smdp.tensorflow.keras.collectives import reducescatter as reducescatter
from smdp.tensorflow.keras.saving import load_model as load_model

__all__ = [
    "Average",
    "Compression",
    "DistributedOptimizer",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather",
    "allgather_object",
    "allreduce",
    "barrier",
    "broadcast",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "init",
    "is_initialized",
    "load_model",
    "local_rank",
    "local_size",
    "rank",
    "reducescatter",
    "shutdown",
    "size",
]
