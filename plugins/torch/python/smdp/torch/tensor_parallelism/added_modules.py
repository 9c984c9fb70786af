"""Finds modules that were put around divided layers after a model had been divided."""

from __future__ import annotations

from torch import nn

from smdp.torch.tensor_parallelism.layers.divided import Divided


class AddedModules:
    """The classes of a divided model's modules.

    A layer of another class around a divided one, such as an adapter of LoRA, would compute with this rank's
    slices as if they were whole. Wrappers without parameters of their own do not matter.

    Args:
        model: The model, right after it has been divided.
    """

    def __init__(self, model: nn.Module) -> None:
        self._classes = {type(module) for module in model.modules()}

    def check(self, model: nn.Module) -> None:
        """Checks that there are none.

        Raises:
            RuntimeError: There is one. The message names it.
        """
        # Runs before each forward, so it makes no names.
        waiting = [model]
        while waiting:
            module = waiting.pop()
            children = [child for child in module._modules.values() if child is not None]
            if not self._is_known(type(module)) and not isinstance(module, Divided):
                for child in children:
                    if isinstance(child, Divided) and _has_more_parameters(module, child):
                        raise RuntimeError(_message(model, module))
            waiting += children

    def _is_known(self, kind: type) -> bool:
        """Returns whether a class, or one that it extends as fully_shard() does, was there before."""
        return any(base in self._classes for base in kind.__mro__ if base is not nn.Module)


def _has_more_parameters(module: nn.Module, child: nn.Module) -> bool:
    inside = {id(parameter) for parameter in child.parameters()}
    return any(id(parameter) not in inside for parameter in module.parameters())


def _message(model: nn.Module, added: nn.Module) -> str:
    kind = type(added)
    name = next((name for name, module in model.named_modules() if module is added), "")
    return (
        f"[smdp] tensor_parallel: module {name!r}, a {kind.__module__}.{kind.__qualname__}, has been put"
        " around a layer after that had been divided, and would take this rank's slices for whole"
        " tensors. Add adapters first, for example by get_peft_model(), and then call tensor_parallel()."
    )
