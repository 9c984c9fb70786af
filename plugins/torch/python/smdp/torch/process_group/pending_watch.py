"""Sees that no parameter is used before it has been stepped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PendingWatch(TorchDispatchMode):
    """While open, an operation on a parameter that waits for its step raises RuntimeError.

    Args:
        name_of_pending: Gives a waiting parameter's name; None for any other tensor.
    """

    def __init__(self, name_of_pending: Callable[[Tensor], str | None]) -> None:
        super().__init__()
        self._name_of_pending = name_of_pending
        self.is_open = False

    def open(self) -> None:
        """Watch this thread's operations, if it does not yet."""
        if not self.is_open:
            self.is_open = True
            self.__enter__()

    def close(self) -> None:
        """Watch no longer."""
        self.is_open = False
        self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Look at every tensor that goes in."""
        for value in tree_leaves((args, kwargs)):
            name = self._name_of_pending(value) if isinstance(value, Tensor) else None
            if name is not None:
                raise RuntimeError(
                    f"[smdp] StepInForward: {name!r} is used before its unit's forward, so before its step."
                    " Give units= whose parameters nothing else uses."
                )
        return func(*args, **(kwargs or {}))
