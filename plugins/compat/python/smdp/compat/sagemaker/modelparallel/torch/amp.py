"""`smdistributed.modelparallel.torch.amp`: mixed precision."""

from __future__ import annotations

from smdp.torch.model_parallel.smp_api.amp import GradScaler

__all__ = ["GradScaler"]
