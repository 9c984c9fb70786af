"""`smdistributed.dataparallel.tensorflow.keras`."""

from __future__ import annotations

from smdp.compat.sagemaker.dataparallel.tensorflow.dense_gradients import (
    DistributedOptimizer as DistributedOptimizer,
)
from smdp.tensorflow.keras import Compression as Compression
from smdp.tensorflow.keras import __all__ as __all__
from smdp.tensorflow.keras import allgather as allgather
from smdp.tensorflow.keras import allreduce as allreduce
from smdp.tensorflow.keras import broadcast as broadcast
from smdp.tensorflow.keras import callbacks as callbacks
from smdp.tensorflow.keras import init as init
from smdp.tensorflow.keras import local_rank as local_rank
from smdp.tensorflow.keras import local_size as local_size
from smdp.tensorflow.keras import rank as rank
from smdp.tensorflow.keras import shutdown as shutdown
from smdp.tensorflow.keras import size as size
