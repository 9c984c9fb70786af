"""Checks of users' arguments, before anything is sent."""

from __future__ import annotations

import math
import os
from typing import Any

from smdp._arguments import integer, number

_MIB = 1 << 20
# In MiB: the address space of a process.
_MOST_MIB = 2.0**30


def root_of(call: str, root_rank: Any, group: Any) -> int:
    """Returns the root rank of a collective as an integer. ``call`` is used in errors.

    Raises:
        TypeError: It is not an integer.
        ValueError: The group does not have this rank.
    """
    root = integer(f"{call}: root_rank", root_rank)
    if not 0 <= root < group.size:
        raise ValueError(f"[smdp] {call}: root_rank is {root}; allowed: 0 to {group.size - 1}.")
    return root


def list_of(call: str, given: Any, cure: str) -> list[Any]:
    """Returns the list of tensors or variables of a call; errors end with ``cure``.

    Raises:
        TypeError: ``given`` cannot be iterated over.
    """
    try:
        each = iter(given)
    except TypeError:  # also raised by a tensor in a graph
        raise TypeError(f"[smdp] {call}() takes a list, but got a {type(given).__name__}. {cure}") from None
    return list(each)


def scale_of(name: str, value: Any) -> float:
    """Returns a scale factor as a float.

    Raises:
        TypeError: It is not a number.
        ValueError: It is infinite or nan.
    """
    given = number(name, value)
    if not math.isfinite(given):
        raise ValueError(f"[smdp] {name} is {given}; it must be finite.")
    return given


def bytes_of(bucket_cap_mb: Any) -> int:
    """Returns the maximum size of a fusion buffer in bytes.

    Raises:
        TypeError: It is not a number.
        ValueError: It is less than a byte, or larger than the address space.
    """
    given = number("bucket_cap_mb", bucket_cap_mb)
    if not 1 / _MIB <= given <= _MOST_MIB:  # also rejects nan
        raise ValueError(
            f"[smdp] bucket_cap_mb is {given}; it must be a number of MiB, at least one byte (2**-20) and at"
            " most 2**30."
        )
    return int(given * _MIB)


def check_path(call: str, given: Any) -> None:
    """Checks that an argument is a path.

    Raises:
        TypeError: It is not a path.
    """
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"[smdp] {call} got {given!r} instead of a path.")
