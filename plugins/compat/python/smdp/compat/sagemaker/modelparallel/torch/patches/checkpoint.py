"""`smdistributed.modelparallel.torch.patches.checkpoint`: says when it is called that it comes later."""

from __future__ import annotations

from smdp.torch.model_parallel.smp_api.later import LaterModule

__getattr__ = LaterModule("patches.checkpoint").__getattr__
