"""Values in messages."""

from __future__ import annotations


def shown(value: object, most: int = 60) -> str:
    """Give a value's repr, or what can be said where it has none; at most so many characters."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # more than 4300 digits; a list too deep
        kind = type(value).__name__
        text = f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"a {kind}"
    return text if len(text) <= most else text[: most - 3] + "..."
