"""`smdistributed.modelparallel.torch.optimizers`: fused optimizers, which are not supported yet."""

from __future__ import annotations

from smdp.torch.model_parallel.unsupported_names import LaterModule

__getattr__ = LaterModule("optimizers").__getattr__
