"""`horovod.tensorflow.sync_batch_norm`."""

from __future__ import annotations

from smdp.tensorflow import SyncBatchNormalization as SyncBatchNormalization
