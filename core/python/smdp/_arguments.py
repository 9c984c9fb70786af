"""Arguments that the core can take: the error names the argument, its value and what is allowed."""

from __future__ import annotations

import operator
from typing import SupportsFloat, SupportsIndex

from smdp._shown import shown


def integer(name: str, value: SupportsIndex) -> int:
    """Give an int that the core can take.

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
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"[smdp] {name} = {shown(number)} is not valid; allowed: an integer below 2^31")
    return number


def number(name: str, value: object) -> float:
    """Give a float.

    Raises:
        TypeError: It is no number, or text of one.
    """
    try:
        if not isinstance(value, (SupportsFloat, SupportsIndex)):  # float() would read text as well
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise TypeError(f"[smdp] {name} = {shown(value)} is not valid; allowed: a number") from None


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
