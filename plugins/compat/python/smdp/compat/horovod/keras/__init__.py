"""`horovod.keras`: the same as `horovod.tensorflow.keras`."""

from __future__ import annotations

from typing import Any

from smdp.compat.horovod.refusals import no_attribute
from smdp.compat.horovod.tensorflow.keras import *  # noqa: F403
from smdp.compat.horovod.tensorflow.keras import DistributedOptimizer as DistributedOptimizer
from smdp.compat.horovod.tensorflow.keras import allgather as allgather
from smdp.compat.horovod.tensorflow.keras import allreduce as allreduce
from smdp.compat.horovod.tensorflow.keras import broadcast as broadcast
from smdp.compat.horovod.tensorflow.keras import broadcast_global_variables as broadcast_global_variables
from smdp.compat.horovod.tensorflow.keras import load_model as load_model
from smdp.compat.horovod.tensorflow.keras import reducescatter as reducescatter
from smdp.tensorflow.keras import callbacks as callbacks


def __getattr__(name: str) -> Any:
    no_attribute("horovod.keras", name)
