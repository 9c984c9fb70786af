"""Passes changes of the loss scale on to objects that keep gradients from step to step."""

from __future__ import annotations

import math
import types
import weakref
from typing import Any, Protocol

import torch


class Follower(Protocol):
    """Keeps values that are proportional to the loss scale."""

    def rescale_residuals(self, factor: float) -> None:
        """Multiplies these values by `factor`, a finite number above 0."""


# In the order of the calls to follow(), which is the same on all ranks.
_followers: weakref.WeakKeyDictionary[torch.amp.GradScaler, weakref.WeakKeyDictionary[Follower, None]] = (
    weakref.WeakKeyDictionary()
)


def follow(scaler: torch.amp.GradScaler, follower: Follower) -> None:
    """Calls `follower.rescale_residuals(new / old)` after every `scaler.update()` that changes the scale.

    Repeated calls with the same follower have no effect. Neither object keeps the other alive. Copies of the
    scaler, including pickled ones, are not followed.

    Raises:
        TypeError: `scaler` is not a loss scaler.
    """
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"[smdp] follow() got a {type(scaler).__name__} in place of a torch.amp.GradScaler.")
    if scaler not in _followers:
        _followers[scaler] = weakref.WeakKeyDictionary()
        scaler.__class__ = _followed(type(scaler))
    _followers[scaler][follower] = None


class _Followed(torch.amp.GradScaler):
    """The first base class of a scaler that is followed; the second is the scaler's own class."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        """Updates the scale, then rescales the followers."""
        before = self.get_scale()
        super().update(*args, **kwargs)
        after = self.get_scale()
        # Many overflows can bring the scale to 0, where it stays.
        if after == before or not before > 0 or not 0 < after / before < math.inf:
            return
        for follower in list(_followers.get(self, ())):
            follower.rescale_residuals(after / before)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copies and pickles the object as one of the scaler's own class."""
        # Later protocols require the object's class.
        function, arguments, *rest = super().__reduce_ex__(0)
        arguments = tuple(_class_of(one) for one in arguments)
        return (_class_of(function), arguments, *rest)


def _followed(base: type) -> type:
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return types.new_class(base.__name__, (_Followed, base), exec_body=lambda own: own.update(names))


def _class_of(value: Any) -> Any:
    """Returns the scaler's own class for a class made by `_followed`, and other values unchanged."""
    is_followed = isinstance(value, type) and issubclass(value, _Followed)
    return value.__bases__[1] if is_followed else value
