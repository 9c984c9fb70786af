"""`smdistributed.modelparallel.torch.amp`: mixed precision."""

from __future__ import annotations

from smdp.torch.model_parallel import amp

GradScaler = amp.GradScaler

__all__ = ["GradScaler"]
