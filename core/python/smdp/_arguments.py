"""Arguments that the core can take: the error names the argument, its value and what is allowed."""

from __future__ import annotations

import operator
from typing import SupportsFloat, SupportsIndex

from smdp._shown import shown

# The core counts milliseconds up to a limit, see seconds() of group_options.cpp.
SHORTEST_S = 1e-3
LONGEST_S = 1e7


def integer(name: str, value: SupportsIndex, bits: int = 32) -> int:
    """Give an int that the core can take, of so many bits with its sign.

    Raises:
        TypeError: It is no integer.
        ValueError: It is far too large.
    """
    try:
        if isinstance(value, bool):  # an index to Python
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
    """Give a float.

    Raises:
        TypeError: It is no number, or text of one.
    """
    if type(value) is float:  # the usual one, and quickly
        return value
    try:
        if not isinstance(value, (SupportsFloat, SupportsIndex)):  # float() would read text as well
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: a number") from None


def seconds(name: str, value: object) -> float:
    """Give a time limit that the core can take: the longest it has for infinity and all that is longer.

    Raises:
        TypeError: It is no number, or text of one.
        ValueError: It is not above 0.
    """
    given = number(name, value)
    if not given > 0:  # nan as well
        raise ValueError(f"[smdp] {name} = {shown(value)} is not valid; allowed: seconds above 0")
    return min(max(given, SHORTEST_S), LONGEST_S)


def timeout_of_call(timeout: object) -> float:
    """Returns the time limit of a call; -1, by which the core takes the group's, for None.

    Raises:
        TypeError: It is not a number.
        ValueError: It is not above 0.
    """
    return -1.0 if timeout is None else seconds("timeout", timeout)


def text(name: str, value: object) -> str:
    """Give text that the core can take.

    Raises:
        TypeError: It is no str.
        ValueError: It holds half of a surrogate pair.
    """
    if not isinstance(value, str):
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: a str")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"[smdp] {name} = {shown(value)} is not valid; allowed: text without half of a surrogate pair, "
            f"as at character {error.start}"
        ) from None
    return value


def flag(name: str, value: object) -> bool:
    """Give a bool.

    Raises:
        TypeError: It is none.
    """
    if not isinstance(value, bool):
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: True, False")
    return value
