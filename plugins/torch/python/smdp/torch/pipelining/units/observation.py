"""Forward hooks of modules inside a unit, whose arguments are results of the unit as well.

Libraries collect router logits or attention weights by such hooks. On the unit's own rank the hooks run as
usual; on other ranks they receive placeholders.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from torch import nn


def observed_modules(unit: nn.Module) -> dict[str, nn.Module]:
    """Returns the modules inside a unit that have forward hooks, by name.

    The unit itself is not included, because its own hooks run outside of it.
    """
    return {
        name: module for name, module in unit.named_modules() if module is not unit and module._forward_hooks
    }


class Observer:
    """Records the outputs of observed modules while the context is open.

    Args:
        modules: The modules to observe.
        is_silent: Whether the modules' own hooks are disabled meanwhile.
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
            # Runs before the other hooks, which may modify the output.
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
    """Calls a module's forward hooks as if it had run; its inputs are not known on this rank."""
    for key, hook in list(module._forward_hooks.items()):
        if key in module._forward_hooks_with_kwargs:
            hook(module, (), {}, output)
        else:
            hook(module, (), output)
