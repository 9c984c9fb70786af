"""Accelerate's states with the backend "smdp", which it refuses on CPUs.

Nothing changes for other backends.
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
# By class: the __init__ that stood there, and what stands there now.
_taught: dict[type, tuple[Any, Any]] = {}


@contextmanager
def default_timeout(timeout: timedelta) -> Iterator[None]:
    """Give a timeout to the group that is made within, on CPUs: transformers' arguments pass none there.

    Args:
        timeout: Of operations; half an hour, torch's default, gives way to SMDP_TIMEOUT.
    """
    global _timeout
    before, _timeout = _timeout, timeout
    try:
        yield
    finally:
        _timeout = before


def install() -> None:
    """Teach PartialState the name, until the program ends. Calling it again does nothing."""
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
                # One process: Accelerate would look for a group that nobody makes.
                del kwargs["backend"]
            elif cpu:
                # Accelerate keeps a group that is there, and asks for gloo by name.
                del kwargs["backend"]
                if not dist.is_initialized():
                    if _timeout is not None:
                        kwargs.setdefault("timeout", _timeout)
                    if "init_method" in kwargs:  # only env:// reads them itself
                        kwargs.setdefault("rank", int(os.environ["RANK"]))
                        kwargs.setdefault("world_size", int(os.environ["WORLD_SIZE"]))
                    dist.init_process_group(_NAME, **kwargs)
                elif not isinstance(dist.group.WORLD, ProcessGroupSmdp):
                    raise ValueError(
                        '[smdp] Accelerate was given backend="smdp", but the process group that is there is'
                        f" of {dist.get_backend()!r}. Make it by init_process_group('smdp'), or leave that to"
                        " Accelerate."
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
    """Give the states back as they were; what somebody else has put over them since stays."""
    for owner, (plain, made) in _taught.items():
        if owner.__init__ is made:  # type: ignore[misc]
            owner.__init__ = plain  # type: ignore[misc]
    _taught.clear()
    atexit.unregister(uninstall)


def _stands(owner: type, made: Any) -> bool:
    """False where it was taken back, but below what somebody else has put over it."""
    return owner in _taught and _taught[owner][1] is made


def _check_earlier_state() -> None:
    # Accelerate takes the state that is there, whatever backend it is asked for.
    state = PartialState._shared_state
    backend = state.get("backend")
    if not state or backend == _NAME or not set_torch_variables():
        return
    if backend is not None and isinstance(dist.group.WORLD, ProcessGroupSmdp):
        # On CPUs it calls each group that it finds gloo.
        state["backend"] = _NAME
        return
    raise ValueError(
        '[smdp] Accelerate was given backend="smdp", but a PartialState or Accelerator was made before'
        f" without it, and its backend is {backend!r}: each rank would train alone, or over that one."
        ' Give the first one the backend: PartialState(backend="smdp").'
    )
