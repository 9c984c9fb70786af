"""`smdistributed.modelparallel.torch.model`: another name for DistributedModel."""

from __future__ import annotations

from smdp.torch.model_parallel import DistributedModel

__all__ = ["DistributedModel"]
