"""Checks of configuration values. Each returns the value as the configuration stores it, or raises.

Messages contain the sentences of SageMaker's SDK verbatim, because users and scripts know them.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias, TypeGuard

from smdp import pipeline
from smdp._shown import shown
from smdp.placement import STRATEGIES

Check: TypeAlias = Callable[[str, object], Any]

_LARGEST = 2**31 - 1
PIPELINES = ["simple", "interleaved", "_only_forward"]
OPTIMIZE = ["speed", "memory"]


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns '; did you mean ...?', or an empty string if no name is similar."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def count(name: str, value: object) -> int:
    """Accepts an int of at least 1."""
    if not _is_int(value) or not 1 <= value <= _LARGEST:
        raise _wrong(f"The number of {name} must be a positive integer.", name, value)
    return int(value)


def index(name: str, value: object) -> int:
    """Accepts an int of at least 0."""
    if not _is_int(value) or not 0 <= value <= _LARGEST:
        raise _wrong(f"{name} must be an integer of at least 0.", name, value)
    return int(value)


def elements(name: str, value: object) -> int:
    """Accepts a whole number of at least 1; JSON reads a number such as 5e8 as a float."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not _is_int(value) or value < 1:
        raise _wrong(f"{name} must be a whole number of at least 1.", name, value)
    return int(value)


def seed(name: str, value: object) -> int:
    """Accepts an int that is a valid seed for torch."""
    if not _is_int(value) or not 0 <= value < 2**63:
        raise _wrong(f"{name} must be an integer from 0 to 2^63 - 1.", name, value)
    return int(value)


def port(name: str, value: object) -> int:
    """Accepts a port; 0 leaves the choice to the launcher."""
    if not _is_int(value) or value < 0:
        raise _wrong(f"Invalid port number {shown(value)}.", name, value)
    if value > 65535:
        raise _wrong(f"Invalid port number {shown(value)}.", name, value, "ports end at 65535.")
    return int(value)


def flag(name: str, value: object) -> bool:
    """Accepts True and False, and 1 and 0 like the SDK."""
    if isinstance(value, (bool, int)) and value in (0, 1):
        return bool(value)
    hint = "true and false are written without quotes." if isinstance(value, str) else ""
    raise _wrong(f"{name} must be a value in: {[True, False]}.", name, value, hint)


def share(name: str, value: object) -> float:
    """Accepts a number from 0 to 1."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= 1.0:
        return float(value)
    raise _wrong(f"{name} must be between 0.0 and 1.0!", name, value)


def positive(name: str, value: object) -> float:
    """Accepts a finite number above 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < math.inf:
        return float(value)
    raise _wrong(f"{name} must be a number above 0.", name, value)


def text(name: str, value: object) -> str:
    """Accepts a str."""
    if not isinstance(value, str):
        raise _wrong(f"'{name}' must be a str.", name, value)
    return value


def one_of(values: Sequence[str], *, listed: Sequence[str] | None = None, more: str = "") -> Check:
    """Returns a check that accepts certain words.

    Args:
        values: All accepted words.
        listed: The words in the SDK's message, if it lists fewer.
        more: A sentence about accepted words that are not listed.
    """

    def check(name: str, value: object) -> str:
        if isinstance(value, str) and value in values:
            return value
        hint = nearest(value, values).removeprefix("; ") if isinstance(value, str) else ""
        sentence = f"{name} must be a value in: {list(listed or values)}."
        raise _wrong(sentence, name, value, " ".join(part for part in (more, hint) if part))

    return check


placement_strategy = one_of(
    STRATEGIES, listed=["spread", "cluster"], more="Permutations of D, P and T are also accepted."
)


schedule = one_of(list(pipeline.SCHEDULES))


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(sentence: str, name: str, value: object, hint: str = "") -> ValueError:
    if not hint and isinstance(value, str) and _is_number(value):
        hint = f"A number in quotes is text: write {value.strip()}."
    return ValueError(f"[smdp] {sentence} Got {name} = {shown(value, 120)}. {hint}".rstrip())


def _is_number(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True
