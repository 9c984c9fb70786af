"""`horovod.torch.mpi_ops`."""

from __future__ import annotations

from smdp.compat.horovod.torch import *  # noqa: F403
