"""Entry point `torch.backends`: registers "smdp" with torch.distributed at the end of `import torch`.

This module imports neither torch nor smdp, and `register` never raises, because an exception here would break
`import torch` in every environment with smdp installed. Creating the first group loads smdp.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Any

_NAME = "smdp"
_NAMES = ("SMDP", "SMDDP")  # smdp.compat registers the second


def register() -> None:
    """Registers the backend unless SMDP_DISABLE_AUTOLOAD is set. torch calls this."""
    try:
        if os.environ.get("SMDP_DISABLE_AUTOLOAD", "").strip().lower() in ("1", "true", "yes"):
            return
        if register_backend():
            from smdp_torch_autoload.accelerate_name import wait_for_accelerate

            wait_for_accelerate()
    except Exception as error:  # noqa: BLE001 - an error would break `import torch`
        warnings.warn(
            f"[smdp] registering the backend 'smdp' with torch.distributed failed ({type(error).__name__}:"
            f" {error}). Run `import smdp.torch` to see the reason.",
            stacklevel=2,
        )


def register_backend(name: str = _NAME) -> bool:
    """Registers the backend under a name unless it is registered already.

    Returns:
        False if this build of torch has no distributed package, else True.
    """
    import torch.distributed as dist

    if not dist.is_available():
        return False
    backend: Any = dist.Backend
    if name.upper() not in backend._plugins:
        backend.register_backend(name, create_process_group, extended_api=True, devices=["cpu", "cuda"])
    if _is_hiding_needed():
        _hide(backend)
    _look_at_launchers()
    return True


def unregister_backend(name: str) -> None:
    """Removes a registered backend, for which torch has no function."""
    import torch.distributed as dist

    backend: Any = dist.Backend
    if backend._plugins.pop(name.upper(), None) is None:
        return
    delattr(backend, name.upper())
    backend.backend_list.remove(name)
    del backend.backend_type_map[name], backend.backend_capability[name]


def create_process_group(backend_options: Any, process_group_options: Any = None) -> Any:
    """Creates a process group. torch calls this on every rank."""
    from smdp.torch.process_group.creation import create

    return create(backend_options, process_group_options)


def _look_at_launchers() -> None:
    """Replaces torch's rendezvous for groups over smdp, to read any launcher and name missing ranks."""
    # torch.distributed.rendezvous is also the name of a function, which hides the module.
    module = sys.modules.get("torch.distributed.rendezvous")
    handlers: dict[str, Any] = getattr(module, "_rendezvous_handlers", {})
    for scheme in ("env", "tcp"):
        torchs = handlers.get(scheme)
        if torchs is not None and not hasattr(torchs, "smdp_torchs"):
            handlers[scheme] = _handler(torchs, scheme)


def _handler(torchs: Any, scheme: str) -> Any:
    def handler(url: str, **options: Any) -> Any:
        if not _is_for_smdp():
            return torchs(url, **options)
        if scheme == "tcp":
            from smdp.torch.rendezvous.tcp_rendezvous import rendezvous
        else:
            from smdp.torch.rendezvous.env_rendezvous import rendezvous
        return rendezvous(torchs, url, **options)

    handler.smdp_torchs = torchs  # type: ignore[attr-defined]
    return handler


def _is_for_smdp() -> bool:
    """Returns whether torch is creating a group over smdp, which it does not tell the handler."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "init_process_group" and "backend" in frame.f_locals:
            names = str(frame.f_locals["backend"]).lower().replace(":", ",").split(",")
            return any(name.upper() in _NAMES for name in names)
        frame = frame.f_back
    return False


def _is_hiding_needed() -> bool:
    torch: Any = sys.modules["torch"]
    major, minor = torch.__version__.split(".")[:2]
    return (int(major), int(minor)) <= (2, 13)


def _hide(backend: Any) -> None:
    """Hides smdp when torch iterates over its plugins. Lookup by name still finds it.

    Up to torch 2.13, a group such as "cpu:gloo" gets no default backend once any plugin is registered,
    because torch checks the first plugin instead of choosing gloo.
    """
    if isinstance(backend._plugins, _Plugins):
        return
    backend._plugins = _Plugins(backend._plugins)


class _Plugins(dict[str, Any]):
    """torch's table of plugins, in which iteration skips smdp."""

    def keys(self) -> Any:
        return dict.fromkeys(self).keys()

    def __iter__(self) -> Any:
        return (name for name in super().__iter__() if name not in _NAMES)
