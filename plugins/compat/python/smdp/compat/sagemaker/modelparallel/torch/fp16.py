"""`smdistributed.modelparallel.torch.fp16`: the names of `smdp.torch.model_parallel.fp16`."""

from __future__ import annotations

from smdp.torch.model_parallel.fp16 import FP16_Module, FP16_Optimizer

__all__ = ["FP16_Module", "FP16_Optimizer"]
