"""A hook on a module that stays behind when the module is copied or pickled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class InertHook:
    """Calls a function outside of compiled graphs; a copy of it does nothing.

    Args:
        function: What to call; None: nothing.
        *arguments: What with.
        takes_result: Whether the last of a hook's own arguments, the result of a forward, follows them.
    """

    def __init__(
        self, function: Callable[..., None] | None = None, *arguments: Any, takes_result: bool = False
    ) -> None:
        self._function = None if function is None else torch.compiler.disable(function)
        self._arguments = arguments
        self._takes_result = takes_result

    def __call__(self, *own: Any) -> None:
        """Be called by torch."""
        if self._function is not None:
            self._function(*self._arguments, *(own[-1:] if self._takes_result else ()))

    def __reduce__(self) -> tuple[type[InertHook], tuple[()]]:
        """Copy it without the function."""
        return InertHook, ()
