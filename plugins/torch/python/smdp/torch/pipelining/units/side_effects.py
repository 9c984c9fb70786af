"""Side effects of a unit's forward, which other ranks see as placeholders or not at all."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from smdp.torch.pipelining.units.unit_call import Unit

_DEEPEST = 4  # a cache of layers of keys has three levels
_DICTS = (dict, OrderedDict, defaultdict, Counter)
_SEQUENCES = (list, set, deque)


@contextlib.contextmanager
def without_side_effects(module: nn.Module, *, but_placeholders: bool = False) -> Iterator[None]:
    """Restores the attributes of a module and its submodules, and the contents of their containers, at exit.

    Nothing may remain of a forward that is not part of training: a number could say that a table is larger
    than it is, and a flag that hooks are installed which no longer exist. State outside modules, such as that
    of functools.lru_cache, is not restored.

    Args:
        module: The module whose forward runs within the context.
        but_placeholders: Whether attributes that hold placeholders at exit keep them, so that code which uses
            them gets an error that names the attribute.
    """
    kept: dict[int, tuple[Any, Any]] = {}
    for each in module.modules():
        _note_contents(vars(each), kept, _DEEPEST)
    try:
        yield
    finally:
        for container, before in kept.values():
            if _is_same(container, before):
                continue
            if isinstance(container, dict):
                _restore_items(container, before, but_placeholders=but_placeholders)
            elif not but_placeholders or not holds_placeholders(container):
                container.clear()
                (container.update if isinstance(container, set) else container.extend)(before)


def _note_contents(item: Any, kept: dict[int, tuple[Any, Any]], depth: int) -> None:
    """Adds the containers in an object to `kept`, by id, each with a copy."""
    if depth == 0 or id(item) in kept:
        return
    inner: Iterable[Any] = ()
    if type(item) in _DICTS:
        kept[id(item)] = item, dict(item)
        inner = item.values()
    elif type(item) in _SEQUENCES:
        kept[id(item)] = item, copy.copy(item)
        inner = item
    elif isinstance(item, tuple):
        inner = item
    elif depth == _DEEPEST - 1 and not callable(item) and not isinstance(item, Tensor):
        # Only for a module's own attributes: deeper ones lead everywhere, from a logger to all loggers.
        inner = (getattr(item, "__dict__", None),)
    for each in inner:
        _note_contents(each, kept, depth - 1)


def _restore_items(items: dict[Any, Any], before: dict[Any, Any], *, but_placeholders: bool) -> None:
    for name in {**before, **items}:
        now = items.get(name)
        is_same = name in items and name in before and now is before[name]
        if is_same or (but_placeholders and holds_placeholders(now)):
            continue
        if name in before:
            items[name] = before[name]
        else:
            del items[name]


def _is_same(container: Any, before: Any) -> bool:
    if len(container) != len(before):
        return False
    if isinstance(container, dict):
        return all(name in container and container[name] is item for name, item in before.items())
    return all(map(operator.is_, container, before))


class Watch:
    """Detects whether attributes of modules are set, or tensors in them are changed in place.

    Args:
        modules: The modules to watch.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept: dict[int, tuple[Any, Any]] = {}
        for module in modules:
            _note_contents(vars(module), self._kept, _DEEPEST)
        self._versions = [
            (item, item._version)
            for _, before in self._kept.values()
            for item in (before.values() if isinstance(before, dict) else before)
            # Not for subclasses, because asking another rank's large result for its version may fetch it.
            if type(item) is Tensor and not item.is_inference()
        ]

    def has_seen_writes(self) -> bool:
        """Returns whether there has been such a write since the watch was created."""
        return any(tensor._version != version for tensor, version in self._versions) or not all(
            _is_same(container, before) for container, before in self._kept.values()
        )


def attributes_with_placeholders(units: Iterable[Unit], tensor: Tensor | None = None) -> list[str]:
    """Returns the names of attributes in which units of other ranks keep placeholders.

    Args:
        units: The units to search.
        tensor: The placeholder to look for. None: any placeholder.
    """
    return [
        ".".join(filter(None, [unit.name, path, name]))
        for unit in units
        for path, module in unit.module.named_modules()
        for name, item in vars(module).items()
        if holds_placeholders(item, tensor)
    ]


def holds_placeholders(item: Any, tensor: Tensor | None = None) -> bool:
    """Returns whether an object holds a placeholder, or the given one."""
    return any(
        isinstance(found, FakeTensor) and (tensor is None or found is tensor)
        for found in reachable_tensors(item)
    )


def reachable_tensors(item: Any, depth: int = _DEEPEST) -> Iterator[Tensor]:
    """Yields the tensors in an object's containers and attributes, except those of modules."""
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
    """Detects tensors that a unit puts into its arguments.

    Args:
        args: The positional arguments of the unit.
        kwargs: The keyword arguments of the unit.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = [*((f"argument {place}", item) for place, item in enumerate(args)), *kwargs.items()]
        self._before = [list(reachable_tensors(item)) for _, item in self._given]

    def check(self, unit: str) -> None:
        """Raises if an argument contains tensors that were not there before the call.

        Raises:
            ValueError: An argument contains new tensors.
        """
        for (name, item), before in zip(self._given, self._before, strict=True):
            known = {id(tensor) for tensor in before}
            if any(id(tensor) not in known for tensor in reachable_tensors(item)):
                raise ValueError(
                    f"[smdp] module {unit!r} puts tensors into the {type(item).__name__} that it gets as"
                    f" {name!r}. They would exist only on this module's rank and be missing on other stages."
                    " Return them instead; for a cache of keys and values, call the model with"
                    " use_cache=False."
                )
