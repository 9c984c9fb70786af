"""Forward hooks of modules inside a unit: what they are given is a result of the unit too.

Libraries collect router logits or attention weights by such hooks. On the unit's own rank they run as always;
on the others they are given placeholders.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn


def observed_modules(unit: nn.Module) -> dict[str, nn.Module]:
    """Give the modules inside a unit that have forward hooks, by name.

    The unit's own hooks run outside of it.
    """
    return {
        name: module for name, module in unit.named_modules() if module is not unit and module._forward_hooks
    }


class Observer:
    """Notes what observed modules give while the context is open.

    Args:
        modules: Those to watch.
        is_silent: Their own hooks do not run meanwhile.
    """

    def __init__(self, modules: dict[str, nn.Module], *, is_silent: bool) -> None:
        self.outputs: list[tuple[str, Any]] = []
        self._modules = modules
        self._is_silent = is_silent
        self._hooks: list[dict[int, Any]] = []
        self._handles: list[Any] = []

    def __enter__(self) -> Observer:
        for name, module in self._modules.items():
            self._hooks.append(dict(module._forward_hooks))
            if self._is_silent:
                module._forward_hooks.clear()
            # Before the others, who may keep what they are given.
            self._handles.append(module.register_forward_hook(self._noting(name), prepend=True))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for module, hooks, handle in zip(self._modules.values(), self._hooks, self._handles, strict=True):
            handle.remove()
            module._forward_hooks.clear()
            module._forward_hooks.update(hooks)
        self._hooks.clear()
        self._handles.clear()

    def _noting(self, name: str) -> Any:
        return lambda module, args, output: self.outputs.append((name, output))


def tell(module: nn.Module, output: Any) -> None:
    """Call a module's forward hooks as if it had run; its inputs are not known here."""
    for key, hook in list(module._forward_hooks.items()):
        if key in module._forward_hooks_with_kwargs:
            hook(module, (), {}, output)
        else:
            hook(module, (), output)
