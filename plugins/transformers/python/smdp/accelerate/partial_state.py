"""Accelerate's PartialState with the backend "smdp", which it refuses on CPUs.

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
from accelerate.state import PartialState

from smdp.environments.torch_variables import set_torch_variables
from smdp.torch.process_group import ProcessGroupSmdp

_NAME = "smdp"
_timeout: timedelta | None = None
# What stood there, and what stands there now.
_taught: tuple[Any, Any] | None = None


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
    global _taught
    if _taught is not None:
        return
    plain = PartialState.__init__

    @functools.wraps(plain)
    def init(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        if _taught is None or _taught[1] is not init:  # taken back, but below what somebody else put over it
            plain(self, cpu, **kwargs)
            return
        is_ours = kwargs.get("backend") == _NAME and not self._shared_state
        if is_ours:
            cpu = cpu or not torch.cuda.is_available()
            if not set_torch_variables():
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

    _taught = plain, init
    PartialState.__init__ = init
    atexit.register(uninstall)


def uninstall() -> None:
    """Give PartialState back as it was; what somebody else has put over it since stays."""
    global _taught
    if _taught is not None and PartialState.__init__ is _taught[1]:
        PartialState.__init__ = _taught[0]
    _taught = None
    atexit.unregister(uninstall)
