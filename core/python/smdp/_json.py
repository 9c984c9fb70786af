"""JSON from untrusted sources."""

from __future__ import annotations

import json
from typing import Any

_MOST_DIGITS = 400  # more than any finite float needs, and below the 4300 at which Python raises an error


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MOST_DIGITS else float(digits)


def loads(text: str | bytes) -> Any:
    """Parses JSON. Integers too long for any field become infinity, so that errors can name the field.

    Raises:
        ValueError: The text is not JSON.
        RecursionError: The text is nested too deeply.
    """
    return json.loads(text, parse_int=_integer)
