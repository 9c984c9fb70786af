"""Hooks on parameters, which torch calls when a gradient has been accumulated."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import takewhile

from torch import Tensor
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle


class ParameterHooks:
    """One hook on each parameter, for as long as this object lives.

    Args:
        parameters: The parameters.
        hook_of: Returns the hook for the parameter with an index. The garbage collector cannot see the
            parameter's reference to it, so the hook must refer to its target weakly.
    """

    def __init__(
        self, parameters: Sequence[Parameter], hook_of: Callable[[int], Callable[[Tensor], None]]
    ) -> None:
        self._parameters = parameters
        self._hook_of = hook_of
        self._handles = [self._register(index) for index in range(len(parameters))]
        self.remove = weakref.finalize(self, _remove, self._handles)

    def id_of(self, index: int) -> int:
        """Returns torch's id of the hook on a parameter."""
        number: int = self._handles[index].id
        return number

    def after(self, index: int) -> list[int]:
        """Returns torch's ids of the hooks that run after this object's hook on a parameter."""
        hooks = getattr(self._parameters[index], "_post_accumulate_grad_hooks", None)
        own = self.id_of(index)
        if not hooks or next(reversed(hooks)) == own:
            return []
        return list(takewhile(lambda one: one != own, reversed(hooks)))

    def move_last(self, index: int) -> None:
        """Moves the hook on a parameter behind all others."""
        self._handles[index].remove()
        self._handles[index] = self._register(index)

    def _register(self, index: int) -> RemovableHandle:
        return self._parameters[index].register_post_accumulate_grad_hook(self._hook_of(index))


def _remove(handles: Sequence[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
