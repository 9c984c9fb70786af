"""`smdistributed.modelparallel.torch`: the names of `smdp.torch.model_parallel`."""

from __future__ import annotations

from typing import Any

from smdp.torch import model_parallel


def __getattr__(name: str) -> Any:
    """Give SMP's name."""
    return getattr(model_parallel, name)


def __dir__() -> list[str]:
    """Give all of them."""
    return dir(model_parallel)
