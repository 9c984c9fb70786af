"""`smdistributed.modelparallel.torch.nn.huggingface.roberta`: translations of state dicts."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel import nn as _nn


def __getattr__(name: str) -> Any:
    """Returns the function of this name from `smdp.torch.model_parallel.nn.huggingface.roberta`."""
    return getattr(_nn.huggingface.roberta, name)
