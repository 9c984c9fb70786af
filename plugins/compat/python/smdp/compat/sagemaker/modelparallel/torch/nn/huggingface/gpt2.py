"""`smdistributed.modelparallel.torch.nn.huggingface.gpt2`: translations of state dicts."""

from __future__ import annotations

from typing import Any

from smdp.torch.model_parallel import nn as _nn


def __getattr__(name: str) -> Any:
    """Returns the function of this name from `smdp.torch.model_parallel.nn.huggingface.gpt2`."""
    return getattr(_nn.huggingface.gpt2, name)
