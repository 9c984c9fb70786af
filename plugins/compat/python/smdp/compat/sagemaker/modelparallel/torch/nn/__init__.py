"""`smdistributed.modelparallel.torch.nn`: modules for tensor parallelism."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel import nn as _nn


def __getattr__(name: str) -> Any:
    """Returns the object of this name from `smdp.torch.model_parallel.nn`."""
    return getattr(_nn, name)
