"""JSON of unknown origin."""

from __future__ import annotations

import json
from typing import Any

_MOST_DIGITS = 400  # of an int that a float can hold; Python itself reads no more than 4300


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def loads(text: str | bytes) -> Any:
    """Read JSON; integers too long for any field are infinite, so that the field refuses them by its name.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It nests too deep.
    """
    return json.loads(text, parse_int=_integer)
