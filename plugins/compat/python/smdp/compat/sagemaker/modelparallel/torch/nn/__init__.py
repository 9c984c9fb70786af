"""`smdistributed.modelparallel.torch.nn`: modules of tensor parallelism, which say when they are made."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel import nn as _nn


def __getattr__(name: str) -> Any:
    """Give SMP's name."""
    return getattr(_nn, name)
