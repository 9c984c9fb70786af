"""`horovod.tensorflow.mpi_ops`."""

from __future__ import annotations

from smdp.compat.horovod.tensorflow import *  # noqa: F403
