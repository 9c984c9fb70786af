"""`smdistributed.modelparallel.torch.optimizers`: fused optimizers."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel import optimizers as _optimizers


def __getattr__(name: str) -> Any:
    """Returns the object of this name from `smdp.torch.model_parallel.optimizers`."""
    return getattr(_optimizers, name)
