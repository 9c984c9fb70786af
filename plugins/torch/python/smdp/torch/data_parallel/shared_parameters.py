"""Parameters that several models share, each of which averages their gradients."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch.nn import Parameter


class Averages(Protocol):
    """Averages gradients, some of which other objects average as well.

    Attributes:
        shared: Tracks which of its parameters are shared.
    """

    shared: SharedParameters

    @property
    def is_deferred(self) -> bool:
        """Whether its optimizer steps in the next forward."""

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has pieces of the means only."""

    def is_in_backward(self) -> bool:
        """Returns whether this object averages the gradients of the innermost running backward."""

    def has_begun(self) -> bool:
        """Returns whether this object averages the gradients of a running backward, perhaps an outer one."""

    def hook_id(self, index: int) -> int:
        """Returns torch's id of the hook on a parameter."""


class _Use(NamedTuple):
    """The object that averages a parameter's gradient, and its index of the parameter."""

    hooks: weakref.ref[Averages]
    number: int


# The uses of each parameter by its id, which stays valid because each user keeps the parameter alive.
_uses: dict[int, list[_Use]] = {}


class SharedParameters:
    """Tracks which parameters of one GradientHooks other objects average as well.

    If several of them take part in one backward, they sum at the same time, so each sums its own copy.

    Args:
        hooks: The owner of the parameters.
        parameters: All parameters of the owner.

    Attributes:
        indices: Indices of the shared parameters. An index may stay after the other object is collected.
    """

    def __init__(self, hooks: Averages, parameters: Sequence[Parameter]) -> None:
        self.indices: set[int] = set()
        self._hooks = weakref.ref(hooks)
        self._ids = [id(parameter) for parameter in parameters]
        weakref.finalize(hooks, _forget, self._ids, self._hooks)
        if not _uses.keys().isdisjoint(self._ids):
            gc.collect()  # a replaced wrapper is in a reference cycle with its hooks
        for index, key in enumerate(self._ids):
            use = _Use(self._hooks, index)
            if key not in _uses:
                _uses[key] = [use]
                continue
            for other, its_index in self._uses_of(key):
                other.shared.indices.add(its_index)
                self.indices.add(index)
            _uses[key].append(use)

    def others(self, index: int) -> list[tuple[Averages, int]]:
        """Returns the other objects that average a parameter, each with its own index of it."""
        if index not in self.indices:
            return []
        found = self._uses_of(self._ids[index])
        if not found:
            self.indices.discard(index)
        return found

    def check_none_is_taken(self, names: Sequence[str]) -> None:
        """Checks that no shared parameter belongs to a model in a StepInForward or a ShardedOptimizer.

        Args:
            names: The names of all parameters.

        Raises:
            ValueError: A shared parameter does.
        """
        for index, name in enumerate(names):
            others = [other for other, _ in self.others(index)]
            if any(other.is_deferred for other in others):
                raise ValueError(
                    f"[smdp] parameter {name!r} also belongs to a model in a StepInForward, which removes its"
                    " gradient from backward. Models that share parameters cannot use StepInForward."
                )
            if any(other.is_sharded for other in others):
                raise ValueError(
                    f"[smdp] parameter {name!r} also belongs to a wrapped model in a ShardedOptimizer, which"
                    " distributes its gradient over the ranks. Delete that wrapper and its optimizer first,"
                    " or use one wrapper for both models."
                )

    def leave(self) -> None:
        """Removes the owner, which no longer averages gradients."""
        _forget(self._ids, self._hooks)
        self.indices.clear()

    def _uses_of(self, key: int) -> list[tuple[Averages, int]]:
        me = self._hooks()
        found = [(use.hooks(), use.number) for use in _uses.get(key, ())]
        return [(hooks, index) for hooks, index in found if hooks is not None and hooks is not me]


def _forget(keys: Sequence[int], gone: weakref.ref[Averages]) -> None:
    for key in keys:
        left = [use for use in _uses.get(key, ()) if use.hooks is not gone]
        if left:
            _uses[key] = left
        else:
            _uses.pop(key, None)
