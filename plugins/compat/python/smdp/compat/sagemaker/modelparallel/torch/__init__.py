"""`smdistributed.modelparallel.torch`: the names of `smdp.torch.model_parallel`."""

from __future__ import annotations

from typing import Any

from smdp.torch import model_parallel


def __getattr__(name: str) -> Any:
    """Returns the object of this name from `smdp.torch.model_parallel`."""
    return getattr(model_parallel, name)


def __dir__() -> list[str]:
    """Returns all names of `smdp.torch.model_parallel`."""
    return dir(model_parallel)
