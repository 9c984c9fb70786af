"""Which ranks an op works between, and what it can carry."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import tensorflow as tf

import smdp

MOVABLE = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "uint16", "int32"]
MOVABLE += ["uint32", "int64", "uint64", "bool", "complex64", "complex128"]
REDUCIBLE = [name for name in MOVABLE if name not in ("uint16", "uint32", "uint64")]


def group_of(group: Any = None, process_set: Any = None) -> smdp.Group:
    """The group that a call names, by default the world.

    Raises:
        ConfigError: Before init().
        TypeError: It is no group.
    """
    chosen = group if group is not None else process_set
    if chosen is None:
        chosen = smdp.world()
    if not isinstance(chosen, smdp.Group):
        raise TypeError(
            f"[smdp] group (or process_set) is a {type(chosen).__name__}; it must be a smdp.Group,"
            " e.g. smdp.world().split(color)."
        )
    _groups[chosen.core.id] = chosen
    return chosen


# By number, as the attributes of ops have them.
_groups: WeakValueDictionary[int, smdp.Group] = WeakValueDictionary()


def by_id(number: int) -> smdp.Group:
    """The group that an op was made with."""
    return _groups[number]


def tensor_of(value: Any, what: str, allowed: list[str]) -> Any:
    """The value as a tensor that can be sent.

    Raises:
        TypeError: Its dtype cannot.
    """
    tensor = tf.convert_to_tensor(value)
    if tensor.dtype.name not in allowed:
        raise TypeError(f"[smdp] {what} got a tensor of {tensor.dtype.name}; it takes {', '.join(allowed)}.")
    return tensor
