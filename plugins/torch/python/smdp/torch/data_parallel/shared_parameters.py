"""Parameters that several models share, each of which averages their gradients."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch.nn import Parameter


class Averages(Protocol):
    """What averages gradients, as others see it that average some of them.

    Attributes:
        shared: Which of its parameters others average as well.
    """

    shared: SharedParameters

    @property
    def is_deferred(self) -> bool:
        """Whether its optimizer steps in the next forward."""

    def is_in_backward(self) -> bool:
        """Returns whether the backward under way is one whose gradients are averaged there."""

    def has_begun(self) -> bool:
        """Returns whether such a backward is under way, perhaps around this one."""

    def hook_id(self, index: int) -> int:
        """Returns the number that torch gave its hook of a parameter."""


class _Use(NamedTuple):
    """By whom a parameter's gradient is averaged, and as which of its parameters."""

    hooks: weakref.ref[Averages]
    number: int


# Who averages a parameter's gradient, by its id. Whoever does so keeps the parameter, and with it the id.
_uses: dict[int, list[_Use]] = {}


class SharedParameters:
    """Knows which parameters of one GradientHooks others average as well.

    In a backward of several of them, each sums a copy of such a gradient, as they do so at the same time.

    Args:
        hooks: Whose parameters these are.
        parameters: All of them.

    Attributes:
        indices: Of those that are shared, or were until another one was collected.
    """

    def __init__(self, hooks: Averages, parameters: Sequence[Parameter]) -> None:
        self.indices: set[int] = set()
        self._hooks = weakref.ref(hooks)
        self._ids = [id(parameter) for parameter in parameters]
        weakref.finalize(hooks, _forget, self._ids, self._hooks)
        if not _uses.keys().isdisjoint(self._ids):
            gc.collect()  # a wrapper that was replaced is in a cycle with its hooks
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
        """Returns who else averages a parameter, each with its own index of it."""
        if index not in self.indices:
            return []
        found = self._uses_of(self._ids[index])
        if not found:
            self.indices.discard(index)
        return found

    def check_none_is_deferred(self, names: Sequence[str]) -> None:
        """Checks that no optimizer takes the gradient of a parameter out of backward.

        Args:
            names: Of all parameters.

        Raises:
            ValueError: Another model has the parameter, in a StepInForward.
        """
        for index, name in enumerate(names):
            if any(other.is_deferred for other, _ in self.others(index)):
                raise ValueError(
                    f"[smdp] parameter {name!r} also belongs to a model in a StepInForward, which takes its"
                    " gradient out of backward. Leave StepInForward out where models share parameters."
                )

    def leave(self) -> None:
        """Takes this object's hooks from those that average, once they no longer do."""
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
