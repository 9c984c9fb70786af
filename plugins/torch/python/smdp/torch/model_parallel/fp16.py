"""`smp.fp16`: what the key `fp16` puts around models and optimizers."""

from __future__ import annotations

from smdp.torch.model_parallel.modules.sixteen_bits import FP16_Module as FP16_Module
from smdp.torch.model_parallel.training.distributed_optimizer import DistributedOptimizer as FP16_Optimizer

__all__ = ["FP16_Module", "FP16_Optimizer"]
