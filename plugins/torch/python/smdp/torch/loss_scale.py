"""A loss scaler's changes, told to those who keep gradients from step to step."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

import torch


def follow(scaler: torch.amp.GradScaler, rescale: Callable[[float], None]) -> None:
    """Call `rescale(new / old)` after every `scaler.update()` that has changed the scale.

    Only this scaler's `update` is replaced, and it does not keep the owner of the bound method `rescale`.
    """
    update = scaler.update
    owner = weakref.WeakMethod(rescale)

    @functools.wraps(update)
    def updated(*args: Any, **kwargs: Any) -> None:
        before = scaler.get_scale()
        update(*args, **kwargs)
        after = scaler.get_scale()
        if after != before and (found := owner()) is not None:
            found(after / before)

    scaler.update = updated
