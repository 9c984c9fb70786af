"""`horovod.torch.sync_batch_norm`."""

from __future__ import annotations

from smdp.torch import SyncBatchNorm as SyncBatchNorm
