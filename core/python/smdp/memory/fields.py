"""The fields of a config.json, checked one by one as they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smdp import config
from smdp._errors import ConfigError

_LARGEST = 2**40


class Fields:
    """A config.json; every error names the file, the field, its value and what is allowed.

    Args:
        values: What the file holds.
        source: Its name, for errors.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._source = source

    def refuse(self, name: str, allowed: str) -> ConfigError:
        """Make the error for a field that is wrong or missing."""
        if self._values.get(name) is None:
            return ConfigError(f"[smdp] {self._source} lacks the field {name}; allowed: {allowed}")
        return config.invalid(f"[smdp] {self._source}: {name}", self._values[name], allowed)

    def count(
        self, name: str, default: int | None = None, *, alias: str = "", maximum: int = _LARGEST
    ) -> int:
        """Give a whole number; without a default the field must be there.

        Args:
            name: The field.
            default: For a field that is missing or null.
            alias: Another name that transformers takes for it.
            maximum: Largest number allowed; the smallest is 1.
        """
        value = self._values.get(name)
        if value is None and alias and self._values.get(alias) is not None:
            name, value = alias, self._values[alias]
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise self.refuse(name, f"an integer from 1 to {maximum}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Give a boolean."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "true, false")
        return value

    def is_above_zero(self, *names: str, default: float) -> bool:
        """Say whether one of some dropout rates is above 0."""
        rates = []
        for name in names:
            value = self._values.get(name)
            value = default if value is None else value
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise self.refuse(name, "a number from 0 to 1")
            rates.append(value)
        return any(rate > 0 for rate in rates)

    def word(self, name: str, default: str) -> str:
        """Give a string."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, "a string")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Give a string, one of some."""
        value = self._values.get(name)
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(name, ", ".join(allowed))
        return value

    def pair(self, name: str) -> tuple[int, int]:
        """Give height and width: two numbers, or one for both."""
        value = self._values.get(name)
        match value if isinstance(value, list) else [value, value]:
            case [int() as height, int() as width]:
                is_fine = not isinstance(value, bool) and all(1 <= one <= _LARGEST for one in (height, width))
                if is_fine:
                    return height, width
        raise self.refuse(name, "an integer from 1, or a list of two")

    def counts(self, name: str) -> list[int]:
        """Give a list of whole numbers from 0, empty where the field is missing."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
        ):
            raise self.refuse(name, "a list of integers from 0")
        return value

    def model_class(self, allowed: Sequence[str]) -> str:
        """Give the class that the weights are of: `architectures`, by default the first of those allowed."""
        value = self._values.get("architectures")
        if value is None or value == []:
            return allowed[0]
        if not isinstance(value, list) or value[0] not in allowed:
            raise self.refuse("architectures", "a list that begins with one of " + ", ".join(allowed))
        return str(value[0])

    def labels(self) -> int:
        """Give the number of labels of a classifier; transformers' default is 2."""
        value = self._values.get("id2label")
        if value is None:
            return self.count("num_labels", 2)
        if not isinstance(value, dict):
            raise self.refuse("id2label", "an object from numbers to names")
        return len(value)

    def head_size(self, hidden: str, heads: str, name: str = "", *, alias: str = "") -> int:
        """Give the width of an attention head: a field of its own, or the hidden size over the heads."""
        if name and self._values.get(name) is not None:
            return self.count(name)
        width = self.count(hidden, alias=alias)
        count = self.count(heads, alias="num_attention_heads")
        if width % count != 0:
            raise self.refuse(
                hidden if self._values.get(hidden) is not None else alias, f"a multiple of the {count} heads"
            )
        return width // count
