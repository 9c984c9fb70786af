"""`smdistributed.dataparallel.torch.parallel`."""

from __future__ import annotations

from smdp.compat.sagemaker.dataparallel.torch.parallel.distributed import (
    DistributedDataParallel as DistributedDataParallel,
)

__all__ = ["DistributedDataParallel"]
