"""A loss scaler's changes, told to those who keep gradients from step to step."""

from __future__ import annotations

import math
import types
import weakref
from typing import Any, Protocol

import torch


class Follower(Protocol):
    """Keeps what belongs to one loss scale."""

    def rescale_residuals(self, factor: float) -> None:
        """Hear that the loss scale has been multiplied by `factor`, a finite number above 0."""


# In the order of the calls, the same on all ranks.
_followers: weakref.WeakKeyDictionary[torch.amp.GradScaler, weakref.WeakKeyDictionary[Follower, None]] = (
    weakref.WeakKeyDictionary()
)


def follow(scaler: torch.amp.GradScaler, follower: Follower) -> None:
    """Call `follower.rescale_residuals(new / old)` after every `scaler.update()` that has changed the scale.

    Once per update, however often this is called. Neither keeps the other, and copies of the scaler, pickled
    ones too, are what they would be without.

    Raises:
        TypeError: It is no loss scaler.
    """
    if not isinstance(scaler, torch.amp.GradScaler):
        raise TypeError(f"[smdp] follow() got a {type(scaler).__name__} in place of a torch.amp.GradScaler.")
    if scaler not in _followers:
        _followers[scaler] = weakref.WeakKeyDictionary()
        scaler.__class__ = _followed(type(scaler))
    _followers[scaler][follower] = None


class _Followed(torch.amp.GradScaler):
    """Stands before the class of a scaler that is followed."""

    def update(self, *args: Any, **kwargs: Any) -> None:
        """As the scaler's class, then tell the followers."""
        before = self.get_scale()
        super().update(*args, **kwargs)
        after = self.get_scale()
        # After many overflows the scale is 0 for good.
        if after == before or not before > 0 or not 0 < after / before < math.inf:
            return
        for follower in list(_followers.get(self, ())):
            follower.rescale_residuals(after / before)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle as an object of the scaler's class."""
        # Later protocols insist on the object's own class.
        function, arguments, *rest = super().__reduce_ex__(0)
        arguments = tuple(_class_of(one) for one in arguments)
        return (_class_of(function), arguments, *rest)


def _followed(base: type) -> type:
    names = {"__module__": base.__module__, "__qualname__": base.__qualname__, "__doc__": base.__doc__}
    return types.new_class(base.__name__, (_Followed, base), exec_body=lambda own: own.update(names))


def _class_of(value: Any) -> Any:
    """Give the class before which a class of `_followed` stands; anything else as it is."""
    is_followed = isinstance(value, type) and issubclass(value, _Followed)
    return value.__bases__[1] if is_followed else value
