"""`smdistributed.modelparallel.torch.utils`: helpers of SMP."""

from __future__ import annotations

from smdp.torch.model_parallel.smp_api import utils as _utils
from smdp.torch.model_parallel.smp_api.utils import rmsg

__all__ = ["rmsg"]

__getattr__ = _utils.__getattr__
