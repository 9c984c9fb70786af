"""`smdistributed.modelparallel.torch.state_mod`: the state of the process."""

from __future__ import annotations

from smdp.torch.model_parallel import state

__all__ = ["state"]
