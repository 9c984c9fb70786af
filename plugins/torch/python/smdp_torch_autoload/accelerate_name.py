"""Lets Accelerate find the backend "smdp" by name without an import of smdp.

On CPUs Accelerate accepts only a few backends. `smdp.accelerate` adds smdp to them. This module waits until
Accelerate is imported, and then until a script names smdp. It loads neither package before.
"""

from __future__ import annotations

import functools
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MODULE = "accelerate.state"


class _Finder:
    """Delegates one module to the other finders, and patches the module after its import."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        loader: Any = None if spec is None else spec.loader
        run = getattr(loader, "exec_module", None)
        if run is not None:

            def exec_module(module: ModuleType) -> None:
                del loader.exec_module
                run(module)
                names = ("PartialState", "AcceleratorState")
                _listen([getattr(module, name) for name in names if hasattr(module, name)])

            loader.exec_module = exec_module
        return spec


def wait_for_accelerate() -> None:
    """Installs the finder once per process. It has no effect if Accelerate is already imported."""
    if _MODULE not in sys.modules and not any(isinstance(one, _Finder) for one in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _listen(states: list[Any]) -> None:
    """Patches Accelerate's states to load smdp.accelerate when one is created with backend="smdp".

    The first such state also removes the patches.
    """
    stood: list[tuple[Any, Any, Any]] = []
    for state in states:
        plain = state.__init__
        listening = _listening(state, plain, stood)
        stood.append((state, plain, listening))
        state.__init__ = listening


def _listening(state: Any, plain: Any, stood: list[tuple[Any, Any, Any]]) -> Any:
    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("backend") == "smdp" and state.__init__ is init:
            for other, before, listening in stood:
                if other.__init__ is listening:
                    other.__init__ = before
            import smdp.accelerate  # noqa: F401 - replaces __init__

            state.__init__(self, *args, **kwargs)
        else:
            plain(self, *args, **kwargs)

    return init
