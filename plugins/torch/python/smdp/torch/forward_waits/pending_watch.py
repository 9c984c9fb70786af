"""Detects parameters that are used before they have their new values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Words(NamedTuple):
    """What messages say about a feature that makes forwards wait for parameters.

    Attributes:
        feature: Its name.
        missed: What an error keeps from parts of the model, for example "their last step".
        event: What gives a parameter its new values, for example "its step".
        cure: What to do if a parameter is used outside the forward of its unit.
    """

    feature: str
    missed: str
    event: str = ""
    cure: str = ""


class PendingWatch(TorchDispatchMode):
    """While open, any operation on a parameter that has no new values yet raises RuntimeError.

    Args:
        name_of_pending: Returns the name of a parameter without its new values, and None for other tensors.
        words: What messages say.
    """

    def __init__(self, name_of_pending: Callable[[Tensor], str | None], words: Words) -> None:
        super().__init__()
        self._name_of_pending = name_of_pending
        self._words = words
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
                    f"[smdp] {self._words.feature}: parameter {name!r} is used before its unit's forward, and"
                    f" therefore before {self._words.event}. {self._words.cure}"
                )
        return func(*args, **(kwargs or {}))
