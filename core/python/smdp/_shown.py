"""Formatting of values in messages."""

from __future__ import annotations

from collections.abc import Iterable


def shown(value: object, most: int = 60) -> str:
    """Returns a value's repr, cut to `most` characters, or its type if the repr cannot be computed."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an int of over 4300 digits; a list nested too deeply
        kind = type(value).__name__
        text = f"an int of {value.bit_length()} bits" if isinstance(value, int) else f"a {kind}"
    return text if len(text) <= most else text[: most - 3] + "..."


def counted(number: int, noun: str) -> str:
    """Returns a number and its noun, in the plural unless the number is 1.

    Example:
        >>> counted(1, "rank"), counted(2, "rank"), counted(2, "microbatch")
        ('1 rank', '2 ranks', '2 microbatches')
    """
    ending = "" if number == 1 else "es" if noun.endswith(("ch", "s")) else "s"
    return f"{number} {noun}{ending}"


def shown_ranks(ranks: Iterable[int]) -> str:
    """Returns ranks as ranges, which stay short even for thousands of ranks.

    Example:
        >>> shown_ranks([0, 3, 4, 5, 9])
        '0, 3-5, 9'
    """
    ends: list[list[int]] = []
    for rank in sorted(ranks):
        if ends and rank == ends[-1][1] + 1:
            ends[-1][1] = rank
        else:
            ends.append([rank, rank])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)
