"""`smdistributed.dataparallel.torch`."""

from __future__ import annotations

from smdp.compat.sagemaker.dataparallel.torch.distributed import get_local_rank as get_local_rank

__all__ = ["get_local_rank"]
