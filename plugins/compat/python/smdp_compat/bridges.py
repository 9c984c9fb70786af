"""Small changes to released packages where they take for granted that SMDDP means GPUs.

Each is made when its package is imported, and taken back by uninstall().
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_Undo = Callable[[], None]


def _ddp_ignores_device_ids_on_cpu(module: Any) -> _Undo:
    """Transformers 4.20 to 5.23 wraps with device_ids=[local rank]; torch refuses them for a CPU module."""
    ddp = module.DistributedDataParallel
    plain = ddp.__init__

    @functools.wraps(plain)
    def init(self: Any, wrapped: Any, *args: Any, **kwargs: Any) -> None:
        if all(parameter.device.type == "cpu" for parameter in wrapped.parameters()):
            args = (None, None, *args[2:]) if args else args
            kwargs.update(dict.fromkeys({"device_ids", "output_device"} & kwargs.keys()))
        plain(self, wrapped, *args, **kwargs)

    ddp.__init__ = init
    return lambda: setattr(ddp, "__init__", plain)


def _accelerate_computes_on_cpu(module: Any) -> _Undo:
    """Accelerate 1.15 takes the local rank modulo the number of GPUs, also where that is zero."""
    import torch

    name = "ACCELERATE_TORCH_DEVICE"
    if torch.cuda.is_available() or name in os.environ:
        return lambda: None
    os.environ[name] = "cpu"

    def undo() -> None:
        os.environ.pop(name, None)

    return undo


_BRIDGES: dict[str, Callable[[Any], _Undo]] = {
    "torch.nn.parallel.distributed": _ddp_ignores_device_ids_on_cpu,
    "accelerate.state": _accelerate_computes_on_cpu,
}


class Bridges(MetaPathFinder):
    """Applies a bridge right after its module has been imported."""

    def __init__(self) -> None:
        self._undo: dict[str, _Undo] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Find the module as everybody else does, and wrap its loader."""
        if fullname not in _BRIDGES or fullname in self._undo:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _Then(spec.loader, functools.partial(self._apply, fullname))
                return spec
        return None

    def apply_to_what_is_imported(self) -> None:
        """For packages that were there before install()."""
        for name in _BRIDGES:
            if name in sys.modules:
                self._apply(name, sys.modules[name])

    def take_back(self) -> None:
        """Undo all."""
        for undo in self._undo.values():
            undo()
        self._undo.clear()

    def _apply(self, name: str, module: ModuleType) -> None:
        if name not in self._undo:
            self._undo[name] = _BRIDGES[name](module)


class _Then(Loader):
    """A loader, and what comes after it."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)
