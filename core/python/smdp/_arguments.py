"""Validation of arguments for the core. Errors name the argument, its value, and the allowed values."""

from __future__ import annotations

import operator
from typing import SupportsFloat, SupportsIndex

from smdp._shown import shown

# The core counts milliseconds up to a limit; see seconds() in group_options.cpp.
SHORTEST_S = 1e-3
LONGEST_S = 1e7


def integer(name: str, value: SupportsIndex, bits: int = 32) -> int:
    """Returns a value as an int that fits into a signed integer of `bits` bits.

    Raises:
        TypeError: The value is not an integer.
        ValueError: The value is too large.
    """
    try:
        if isinstance(value, bool):  # operator.index() would accept it
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: an integer") from None
    if not -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
        raise ValueError(
            f"[smdp] {name} = {shown(number)} is not valid; allowed: an integer below 2^{bits - 1}"
        )
    return number


def number(name: str, value: object) -> float:
    """Returns a number as a float.

    Raises:
        TypeError: The value is not a number. A str is not accepted either.
    """
    if type(value) is float:  # fast path for the common case
        return value
    try:
        if not isinstance(value, (SupportsFloat, SupportsIndex)):  # float() would parse a str
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: a number") from None


def seconds(name: str, value: object) -> float:
    """Returns a time limit in seconds, clamped to the range that the core supports.

    Raises:
        TypeError: The value is not a number. A str is not accepted either.
        ValueError: The value is not above 0.
    """
    given = number(name, value)
    if not given > 0:  # also true for NaN
        raise ValueError(f"[smdp] {name} = {shown(value)} is not valid; allowed: seconds above 0")
    return min(max(given, SHORTEST_S), LONGEST_S)


def timeout_of_call(timeout: object) -> float:
    """Returns the time limit of a call in seconds. None gives -1, which stands for the group's limit.

    Raises:
        TypeError: The value is not a number.
        ValueError: The value is not above 0.
    """
    return -1.0 if timeout is None else seconds("timeout", timeout)


def text(name: str, value: object) -> str:
    """Returns a str that can be encoded as UTF-8.

    Raises:
        TypeError: The value is not a str.
        ValueError: The value contains an unpaired surrogate.
    """
    if not isinstance(value, str):
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"[smdp] {name} = {shown(value)} is not valid: the character at index {error.start} is an"
            " unpaired surrogate; allowed: a str that can be encoded as UTF-8"
        ) from None
    return value


def flag(name: str, value: object) -> bool:
    """Returns a bool.

    Raises:
        TypeError: The value is not a bool.
    """
    if not isinstance(value, bool):
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: True, False")
    return value
