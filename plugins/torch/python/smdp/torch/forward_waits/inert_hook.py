"""A module hook that does nothing in copies of the module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class InertHook:
    """Calls a function outside compiled graphs, which it divides. A copied or pickled hook does nothing.

    Args:
        function: The function, or None to do nothing.
        *arguments: The arguments of the function.
        takes_result: Whether to append the last argument of the hook, which is the result of a forward hook.
        is_compiled: False: compiled graphs leave the call out, and stay whole.
    """

    def __init__(
        self,
        function: Callable[..., None] | None = None,
        *arguments: Any,
        takes_result: bool = False,
        is_compiled: bool = True,
    ) -> None:
        self._function = None if function is None else torch.compiler.disable(function)
        self._arguments = arguments
        self._takes_result = takes_result
        self._is_compiled = is_compiled

    def __call__(self, *own: Any) -> None:
        """Calls the function. torch calls this with the hook's arguments."""
        if not self._is_compiled and torch.compiler.is_compiling():
            return
        if self._function is not None:
            self._function(*self._arguments, *(own[-1:] if self._takes_result else ()))

    def __reduce__(self) -> tuple[type[InertHook], tuple[()]]:
        """Copies the hook without the function."""
        return InertHook, ()
