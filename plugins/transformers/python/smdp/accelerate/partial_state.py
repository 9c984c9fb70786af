"""Adds the backend "smdp" to Accelerate's states, which would refuse it on CPUs.

Other backends are not affected.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from accelerate.state import AcceleratorState, PartialState

from smdp.environments.choice import warn_alone
from smdp.environments.torch_variables import set_torch_variables
from smdp.torch.plugin_support import ProcessGroupSmdp

_NAME = "smdp"
_timeout: timedelta | None = None
# The original and the patched __init__, by class.
_taught: dict[type, tuple[Any, Any]] = {}


@contextmanager
def default_timeout(timeout: timedelta) -> Iterator[None]:
    """Sets the timeout of a group created within the context on CPUs, where transformers passes none.

    Args:
        timeout: The timeout of operations. SMDP_TIMEOUT replaces torch's default of 30 minutes.
    """
    global _timeout
    before, _timeout = _timeout, timeout
    try:
        yield
    finally:
        _timeout = before


def install() -> None:
    """Patches Accelerate's states to accept the backend "smdp".

    The patch stays until the program ends or `uninstall()` is called. Calling it again does nothing.
    """
    if _taught:
        return
    plain = PartialState.__init__
    plain_accelerator = AcceleratorState.__init__

    @functools.wraps(plain)
    def init(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        if not _stands(PartialState, init):
            plain(self, cpu, **kwargs)
            return
        is_ours = kwargs.get("backend") == _NAME and not self._shared_state
        if is_ours:
            cpu = cpu or not torch.cuda.is_available()
            if not set_torch_variables():
                warn_alone()
                # With a single process, Accelerate would look for a group that does not exist.
                del kwargs["backend"]
            elif cpu:
                # Accelerate keeps an existing group, but would create one over gloo itself.
                del kwargs["backend"]
                if not dist.is_initialized():
                    if _timeout is not None:
                        kwargs.setdefault("timeout", _timeout)
                    if "init_method" in kwargs:  # only env:// reads them from the environment
                        kwargs.setdefault("rank", int(os.environ["RANK"]))
                        kwargs.setdefault("world_size", int(os.environ["WORLD_SIZE"]))
                    dist.init_process_group(_NAME, **kwargs)
                elif not isinstance(dist.group.WORLD, ProcessGroupSmdp):
                    raise ValueError(
                        '[smdp] Accelerate was given backend="smdp", but the existing process group uses'
                        f" {dist.get_backend()!r}. Create it with init_process_group('smdp'), or let"
                        " Accelerate create it."
                    )
        plain(self, cpu, **kwargs)
        if is_ours and self.backend is not None:
            self.backend = _NAME

    @functools.wraps(plain_accelerator)
    def init_accelerator(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("backend") == _NAME and _stands(AcceleratorState, init_accelerator):
            _check_earlier_state()
        plain_accelerator(self, *args, **kwargs)

    _taught[PartialState] = plain, init
    _taught[AcceleratorState] = plain_accelerator, init_accelerator
    for owner, (_, made) in _taught.items():
        owner.__init__ = made  # type: ignore[misc]
    atexit.register(uninstall)


def uninstall() -> None:
    """Restores Accelerate's states, except where other code has patched them since."""
    for owner, (plain, made) in _taught.items():
        if owner.__init__ is made:  # type: ignore[misc]
            owner.__init__ = plain  # type: ignore[misc]
    _taught.clear()
    atexit.unregister(uninstall)


def _stands(owner: type, made: Any) -> bool:
    """Returns whether the patch is installed. After uninstall() another patch may still call it."""
    return owner in _taught and _taught[owner][1] is made


def _check_earlier_state() -> None:
    # Accelerate uses the existing state, whatever backend is requested.
    state = PartialState._shared_state
    backend = state.get("backend")
    if not state or backend == _NAME or not set_torch_variables():
        return
    if backend is not None and isinstance(dist.group.WORLD, ProcessGroupSmdp):
        # On CPUs Accelerate assumes that every existing group uses gloo.
        state["backend"] = _NAME
        return
    raise ValueError(
        '[smdp] Accelerate was given backend="smdp", but an earlier PartialState or Accelerator was created'
        f" without it and has the backend {backend!r}, so each rank would train alone or over that backend."
        ' Pass the backend to the first one: PartialState(backend="smdp").'
    )
