"""Tensors inside the structures that modules take and return: tuples, dicts, dataclasses, ModelOutput."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import Parameter

_OPTIONS = (type(None), str, int, float)
# Checked by exact class, which is fastest: these functions run several times in each operation.
_FREQUENT = frozenset([Tensor, Parameter, FakeTensor, type(None), str, int, float, bool])

# Objects of these types are never searched, even if a dataclass derives from one of them.
_WHOLE = (type, Tensor, str, int, float)

_BATCH_TYPES: set[type] = set()


def tensors_in(tree: Any) -> list[Tensor]:
    """Returns the tensors of a structure in a fixed order."""
    found: list[Any] = []
    _collect(tree, found)
    return [leaf for leaf in found if isinstance(leaf, Tensor)]


def leaves_in(tree: Any) -> list[Any]:
    """Returns all leaves of a structure, so that indices do not depend on which leaves are tensors."""
    found: list[Any] = []
    _collect(tree, found)
    return found


def _collect(tree: Any, found: list[Any]) -> None:
    if type(tree) in _FREQUENT:
        found.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            _collect(item, found)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, found)
    elif dataclasses.is_dataclass(tree) and not isinstance(tree, _WHOLE):
        for field in dataclasses.fields(tree):
            _collect(getattr(tree, field.name), found)
    else:
        found.append(tree)


def map_tensors(function: Callable[[Tensor], Any], tree: Any) -> Any:
    """Returns a structure with each tensor replaced; a structure without tensors is returned itself."""
    return map_leaves(lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf, tree)


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Returns a structure with each leaf replaced; the structure itself if no leaf changes."""
    if type(tree) in _FREQUENT:
        return function(tree)
    if isinstance(tree, (list, tuple)):
        items = [map_leaves(function, item) for item in tree]
        if not any(map(operator.is_not, items, tree)):
            return tree
        if hasattr(tree, "_fields"):
            return type(tree)(*items)
        return type(tree)(items)
    if isinstance(tree, dict):
        values = {key: map_leaves(function, item) for key, item in tree.items()}
        if not any(map(operator.is_not, values.values(), tree.values())):
            return tree
        # A ModelOutput is both a dict and a dataclass: setting an item also sets the attribute.
        changed = copy.copy(tree)
        for key, value in values.items():
            changed[key] = value
        return changed
    if dataclasses.is_dataclass(tree) and not isinstance(tree, _WHOLE):
        fields = {field.name: getattr(tree, field.name) for field in dataclasses.fields(tree)}
        mapped = {name: map_leaves(function, item) for name, item in fields.items()}
        if all(mapped[name] is fields[name] for name in fields):
            return tree
        filled = copy.copy(tree)
        for name, item in mapped.items():
            object.__setattr__(filled, name, item)
        return filled
    return function(tree)


def look_into(kind: type) -> None:
    """Makes describe() look into objects of a user's class, because they are part of a batch."""
    _BATCH_TYPES.add(kind)


def describe(tree: Any) -> Any:
    """Returns all that determines how a structure is computed: shapes, dtypes and option values."""
    if isinstance(tree, Tensor):
        return (tuple(tree.shape), tree.dtype, tree.device.type, tree.requires_grad)
    if isinstance(tree, (list, tuple)):
        return (type(tree).__name__, *(describe(item) for item in tree))
    if isinstance(tree, Mapping):
        return (type(tree).__name__, *((key, describe(item)) for key, item in tree.items()))
    if isinstance(tree, _OPTIONS):
        return tree
    if isinstance(tree, (set, frozenset)):
        return (type(tree).__name__, frozenset(describe(item) for item in tree))
    # Options inside objects may change without a new recording.
    parts = ((name, getattr(tree, name, None)) for name in _parts_of(tree))
    return (
        type(tree).__qualname__,
        *((name, describe(part)) for name, part in parts if not isinstance(part, _OPTIONS)),
    )


def _parts_of(tree: Any) -> list[str]:
    """Returns the names of an object's parts, if it is part of a batch."""
    if isinstance(tree, type):
        return []
    if dataclasses.is_dataclass(tree):
        return [field.name for field in dataclasses.fields(tree)]
    return list(getattr(tree, "__dict__", ())) if type(tree) in _BATCH_TYPES else []
