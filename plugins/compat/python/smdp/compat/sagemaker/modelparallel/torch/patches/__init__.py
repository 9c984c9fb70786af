"""`smdistributed.modelparallel.torch.patches`: of activation checkpointing; can be imported."""

from __future__ import annotations

from smdp.torch.model_parallel.smp_api.later import LaterModule

__getattr__ = LaterModule("patches").__getattr__
