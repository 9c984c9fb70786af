"""Entry point `torch.backends`: makes "smdp" known to torch.distributed at the end of `import torch`.

Neither torch nor smdp is imported with this module, and `register` never raises: an exception here would
break `import torch` for everybody who has smdp installed. smdp itself is loaded by the first group.
"""

from __future__ import annotations

import os
import sys
import warnings
from types import FrameType
from typing import Any

_NAME = "smdp"
# SMDDP's; registered by smdp.compat.
_NAMES = ("SMDP", "SMDDP")


def register() -> None:
    """Register the backend, unless SMDP_DISABLE_AUTOLOAD says otherwise. torch calls this."""
    try:
        if os.environ.get("SMDP_DISABLE_AUTOLOAD", "").strip().lower() in ("1", "true", "yes"):
            return
        if register_backend():
            from smdp_torch_autoload.accelerate_name import wait_for_accelerate

            wait_for_accelerate()
    except Exception as error:  # noqa: BLE001 - see above
        warnings.warn(
            f"smdp could not register itself with torch.distributed ({type(error).__name__}: {error}); "
            "`import smdp.torch` shows why",
            stacklevel=2,
        )


def register_backend(name: str = _NAME) -> bool:
    """Register the backend under a name once; give False where torch has no distributed package."""
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
    """Take a name back; torch has no call for it."""
    import torch.distributed as dist

    backend: Any = dist.Backend
    if backend._plugins.pop(name.upper(), None) is None:
        return
    delattr(backend, name.upper())
    backend.backend_list.remove(name)
    del backend.backend_type_map[name], backend.backend_capability[name]


def create_process_group(backend_options: Any, process_group_options: Any = None) -> Any:
    """Make a group; torch calls this on every rank."""
    from smdp.torch.process_group.creation import create

    return create(backend_options, process_group_options)


def _look_at_launchers() -> None:
    """Lets groups over smdp take ranks from any launcher and name missing ones; others never notice."""
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
    """Tell whether the group that torch is making is one over smdp: the handler is not told."""
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
    """Leave smdp out when torch iterates over its plugins.

    Up to 2.13 a group such as "cpu:gloo" gets no default backend as soon as any plugin is registered: torch
    looks at the first plugin instead of setting gloo. Look-up by name still finds smdp.
    """
    if isinstance(backend._plugins, _Plugins):
        return
    backend._plugins = _Plugins(backend._plugins)


class _Plugins(dict[str, Any]):
    """torch's table of plugins, in which smdp can be looked up but not seen."""

    def keys(self) -> Any:
        return dict.fromkeys(self).keys()

    def __iter__(self) -> Any:
        return (name for name in super().__iter__() if name not in _NAMES)
