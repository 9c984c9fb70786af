"""`smdistributed.modelparallel.torch.utils`: helpers of SMP."""

from __future__ import annotations

from smdp.torch.model_parallel import utils as _utils
from smdp.torch.model_parallel.utils import rmsg

__all__ = ["rmsg"]

__getattr__ = _utils.__getattr__
