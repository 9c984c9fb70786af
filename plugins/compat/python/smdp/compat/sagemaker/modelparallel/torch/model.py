"""`smdistributed.modelparallel.torch.model`: DistributedModel once more."""

from __future__ import annotations

from smdp.torch.model_parallel import DistributedModel

__all__ = ["DistributedModel"]
