"""What users pass, checked before anything is sent."""

from __future__ import annotations

import math
import os
from typing import Any

from smdp._arguments import integer, number

_MIB = 1 << 20
# In MiB: all the address space of a process.
_MOST_MIB = 2.0**30


def root_of(call: str, root_rank: Any, group: Any) -> int:
    """A root of a group's collective; ``call`` is for the error.

    Raises:
        TypeError: It is no integer.
        ValueError: The group has no such rank.
    """
    root = integer(f"{call}: root_rank", root_rank)
    if not 0 <= root < group.size:
        raise ValueError(f"[smdp] {call}: root_rank is {root}; allowed: 0 to {group.size - 1}.")
    return root


def list_of(call: str, given: Any, cure: str) -> list[Any]:
    """What a call on several tensors or variables works on.

    Raises:
        TypeError: It is nothing with elements.
    """
    try:
        each = iter(given)
    except TypeError:  # also of a tensor in a graph
        raise TypeError(f"[smdp] {call}() takes a list, and got a {type(given).__name__}. {cure}") from None
    return list(each)


def scale_of(name: str, value: Any) -> float:
    """What tensors are multiplied by.

    Raises:
        TypeError: It is no number.
        ValueError: It is infinite, or nan.
    """
    given = number(name, value)
    if not math.isfinite(given):
        raise ValueError(f"[smdp] {name} is {given}; it must be finite.")
    return given


def bytes_of(bucket_cap_mb: Any) -> int:
    """Most bytes of a fusion buffer.

    Raises:
        TypeError: It is no number.
        ValueError: It is less than a byte, or more than there can be.
    """
    given = number("bucket_cap_mb", bucket_cap_mb)
    if not 1 / _MIB <= given <= _MOST_MIB:  # nan as well
        raise ValueError(
            f"[smdp] bucket_cap_mb is {given}; it must be a number of MiB, at least one byte (2**-20) and at"
            " most 2**30."
        )
    return int(given * _MIB)


def check_path(call: str, given: Any) -> None:
    """Checks that an argument is a path.

    Raises:
        TypeError: It is not one.
    """
    if not isinstance(given, str | os.PathLike):
        raise TypeError(f"[smdp] {call} got {given!r} in place of a path.")
