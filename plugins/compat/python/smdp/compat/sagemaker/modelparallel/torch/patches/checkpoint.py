"""`smdistributed.modelparallel.torch.patches.checkpoint`."""

from __future__ import annotations

from smdp.torch.model_parallel import patches

checkpoint = patches.checkpoint.checkpoint
checkpoint_sequential = patches.checkpoint.checkpoint_sequential
