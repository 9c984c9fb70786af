"""`smdistributed.modelparallel.torch.utils`: of tensor parallelism; can be imported."""

from __future__ import annotations

from smdp.torch.model_parallel.smp_api.later import LaterModule

__getattr__ = LaterModule("utils").__getattr__
