"""`horovod.tensorflow.functions`."""

from __future__ import annotations

from smdp.compat.horovod.tensorflow import allgather_object as allgather_object
from smdp.compat.horovod.tensorflow import broadcast_object as broadcast_object
from smdp.compat.horovod.tensorflow import broadcast_object_fn as broadcast_object_fn
from smdp.compat.horovod.tensorflow import broadcast_variables as broadcast_variables
