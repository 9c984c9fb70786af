"""Detects parameters that are used before they have been stepped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class PendingWatch(TorchDispatchMode):
    """While open, any operation on a parameter that waits for its step raises RuntimeError.

    Args:
        name_of_pending: Returns the name of a parameter that waits for its step, and None for other tensors.
    """

    def __init__(self, name_of_pending: Callable[[Tensor], str | None]) -> None:
        super().__init__()
        self._name_of_pending = name_of_pending
        self.is_open = False

    def open(self) -> None:
        """Starts watching the operations of this thread."""
        if not self.is_open:
            self.is_open = True
            self.__enter__()

    def close(self) -> None:
        """Stops watching."""
        self.is_open = False
        self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Checks every tensor among the arguments of an operation."""
        for value in tree_leaves((args, kwargs)):
            name = self._name_of_pending(value) if isinstance(value, Tensor) else None
            if name is not None:
                raise RuntimeError(
                    f"[smdp] StepInForward: parameter {name!r} is used before its unit's forward, and"
                    " therefore before its step. Pass units=[...] whose parameters are used only in their own"
                    " forward."
                )
        return func(*args, **(kwargs or {}))
