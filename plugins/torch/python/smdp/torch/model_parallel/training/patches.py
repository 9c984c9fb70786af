"""`smp.patches`: what SMP puts in the place of torch's checkpoint."""

from __future__ import annotations

from smdp.torch.model_parallel.training import activation_checkpointing as checkpoint

__all__ = ["checkpoint"]
