"""Entry point `torch.backends`: makes "smdp" known to torch.distributed at the end of `import torch`.

Neither torch nor smdp is imported with this module, and `register` never raises: an exception here would
break `import torch` for everybody who has smdp installed. smdp itself is loaded by the first group.
"""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

_NAME = "smdp"
# SMDDP's; registered by smdp.compat.
_NAMES = ("SMDP", "SMDDP")


def register() -> None:
    """Register the backend, unless SMDP_DISABLE_AUTOLOAD says otherwise. torch calls this."""
    try:
        if os.environ.get("SMDP_DISABLE_AUTOLOAD", "").strip().lower() in ("1", "true", "yes"):
            return
        register_backend()
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
    return True


def create_process_group(backend_options: Any, process_group_options: Any = None) -> Any:
    """Make a group; torch calls this on every rank."""
    from smdp.torch.register import create

    return create(backend_options, process_group_options)


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
