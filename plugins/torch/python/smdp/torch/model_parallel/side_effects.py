"""What a unit's forward leaves behind beside its result: other ranks have placeholders of it, or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from smdp.torch.model_parallel.unit_call import Unit

_DEEPEST = 4  # a cache of layers of keys has three levels


@contextlib.contextmanager
def without_placeholders(module: nn.Module) -> Iterator[None]:
    """Give attributes back what they were that hold placeholders afterwards, of a module and those in it.

    Others stay as the forward has set them: a flag that hooks are installed must stay with the hooks.
    """
    kept = [(each, dict(vars(each))) for each in module.modules()]
    try:
        yield
    finally:
        for each, before in kept:
            for name, item in list(vars(each).items()):
                if item is before.get(name) or not holds_placeholders(item):
                    continue
                if name in before:
                    vars(each)[name] = before[name]
                else:
                    del vars(each)[name]


def attributes_with_placeholders(units: Iterable[Unit], tensor: Tensor | None = None) -> list[str]:
    """Name the attributes in which units of other ranks keep placeholders.

    Args:
        units: Where to look.
        tensor: Which one it is; None: any.
    """
    return [
        ".".join(filter(None, [unit.name, path, name]))
        for unit in units
        for path, module in unit.module.named_modules()
        for name, item in vars(module).items()
        if holds_placeholders(item, tensor)
    ]


def holds_placeholders(item: Any, tensor: Tensor | None = None) -> bool:
    """Tell whether there is a placeholder, or this one, in an object."""
    return any(
        isinstance(found, FakeTensor) and (tensor is None or found is tensor)
        for found in reachable_tensors(item)
    )


def reachable_tensors(item: Any, depth: int = _DEEPEST) -> Iterator[Tensor]:
    """Give the tensors in an object's containers and attributes, those of modules excepted."""
    if isinstance(item, Tensor):
        yield item
    elif depth == 0 or isinstance(item, (nn.Module, type, str, bytes, int, float, type(None))):
        return
    elif isinstance(item, dict):
        for each in item.values():
            yield from reachable_tensors(each, depth - 1)
    elif isinstance(item, (list, tuple, set, frozenset)):
        for each in item:
            yield from reachable_tensors(each, depth - 1)
    elif not callable(item):
        for each in getattr(item, "__dict__", {}).values():
            yield from reachable_tensors(each, depth - 1)


class Filled:
    """Finds out whether a unit puts tensors into objects that it is given.

    Args:
        args: Of the unit.
        kwargs: Of the unit.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = [*((f"argument {place}", item) for place, item in enumerate(args)), *kwargs.items()]
        self._before = [list(reachable_tensors(item)) for _, item in self._given]

    def check(self, unit: str) -> None:
        """Refuse tensors that were not there before.

        Raises:
            ValueError: There are some.
        """
        for (name, item), before in zip(self._given, self._before, strict=True):
            known = {id(tensor) for tensor in before}
            if any(id(tensor) not in known for tensor in reachable_tensors(item)):
                raise ValueError(
                    f"[smdp] module {unit!r} puts tensors into the {type(item).__name__} that it is given as"
                    f" {name!r}. They would stay on its own rank, and other stages see none. Return them"
                    " instead; of a cache of keys and values, call the model with use_cache=False."
                )
