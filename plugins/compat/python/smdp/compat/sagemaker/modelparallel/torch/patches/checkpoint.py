"""`smdistributed.modelparallel.torch.patches.checkpoint`."""

from __future__ import annotations

from smdp.torch.model_parallel.smp_api.activation_checkpointing import checkpoint as checkpoint
from smdp.torch.model_parallel.smp_api.activation_checkpointing import (
    checkpoint_sequential as checkpoint_sequential,
)
