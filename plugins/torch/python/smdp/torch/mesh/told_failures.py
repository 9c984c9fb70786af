"""Ends the wait of other ranks for a rank that fails in the forward or backward of a model.

Their error then has the reason. Otherwise they would wait until the process of this rank has ended.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from smdp.torch.mesh.cuts import mesh_of_slices

_Model = TypeVar("_Model", bound=nn.Module)
_aborts: weakref.WeakKeyDictionary[nn.Module, Callable[[Any, str], None]] = weakref.WeakKeyDictionary()


def tells_failures(model: _Model, abort: Callable[[_Model, str], None]) -> None:
    """Makes `tell_failure()` call a function with a model and the reason, while the model exists.

    Args:
        model: A model whose ranks wait for each other in backward.
        abort: Ends the wait of the other ranks.
    """
    _aborts[model] = abort


def tell_failure(part: nn.Module, error: BaseException) -> None:
    """Ends the waits of the ranks that train a model with this one.

    Args:
        part: The model without its wrapper.
        error: Why this rank cannot go on.
    """
    reason = str(error).removeprefix("[smdp] ") or type(error).__name__
    own = {id(parameter) for parameter in part.parameters()}
    for model, abort in list(_aborts.items()):
        if any(id(parameter) in own for parameter in model.parameters()):
            with contextlib.suppress(Exception):
                abort(model, reason)
    mesh = mesh_of_slices(part.parameters())
    if mesh is not None:
        mesh.abort(reason)
