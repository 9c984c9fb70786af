"""The fields of a config.json, each checked when it is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from smdp import config
from smdp._errors import ConfigError

_LARGEST = 2**40


class Fields:
    """The fields of a config.json. Errors have the file, the field, its value, and what is allowed.

    Args:
        values: Content of the file.
        source: Name of the file, for errors.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self._values = values
        self._source = source

    def refuse(self, name: str, allowed: str) -> ConfigError:
        """Returns the error for a field that is invalid or missing."""
        if self._values.get(name) is None:
            return ConfigError(f"[smdp] {self._source} lacks the field {name}; allowed: {allowed}")
        return config.invalid(f"[smdp] {self._source}: {name}", self._values[name], allowed)

    def count(
        self, name: str, default: int | None = None, *, alias: str = "", maximum: int = _LARGEST
    ) -> int:
        """Returns a positive integer. Without a default, the field is required.

        Args:
            name: Name of the field.
            default: Value if the field is missing or null.
            alias: Alternative name that transformers accepts for the field.
            maximum: The largest allowed value; the smallest is 1.
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
        """Returns a boolean."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.refuse(name, "true, false")
        return value

    def is_above_zero(self, *names: str, default: float) -> bool:
        """Returns whether any of the dropout rates with these names is above 0."""
        rates = []
        for name in names:
            value = self._values.get(name)
            value = default if value is None else value
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
                raise self.refuse(name, "a number from 0 to 1")
            rates.append(value)
        return any(rate > 0 for rate in rates)

    def word(self, name: str, default: str) -> str:
        """Returns a string."""
        value = self._values.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.refuse(name, "a string")
        return value

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        """Returns a string, which must be one of those allowed."""
        value = self._values.get(name)
        if not isinstance(value, str) or value not in allowed:
            raise self.refuse(name, ", ".join(allowed))
        return value

    def pair(self, name: str) -> tuple[int, int]:
        """Returns height and width, from a list of two numbers or one number for both."""
        value = self._values.get(name)
        match value if isinstance(value, list) else [value, value]:
            case [int() as height, int() as width]:
                is_fine = not isinstance(value, bool) and all(1 <= one <= _LARGEST for one in (height, width))
                if is_fine:
                    return height, width
        raise self.refuse(name, "an integer of at least 1, or a list of two")

    def counts(self, name: str) -> list[int]:
        """Returns a list of non-negative integers; empty if the field is missing."""
        value = self._values.get(name)
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in value
        ):
            raise self.refuse(name, "a list of non-negative integers")
        return value

    def model_class(self, allowed: Sequence[str]) -> str:
        """Returns the model class in `architectures`; by default, the first of those allowed."""
        value = self._values.get("architectures")
        if value is None or value == []:
            return allowed[0]
        if not isinstance(value, list) or value[0] not in allowed:
            raise self.refuse("architectures", "a list that begins with one of " + ", ".join(allowed))
        return str(value[0])

    def labels(self) -> int:
        """Returns the number of labels of a classifier; the default in transformers is 2."""
        value = self._values.get("id2label")
        if value is None:
            return self.count("num_labels", 2)
        if not isinstance(value, dict):
            raise self.refuse("id2label", "an object from numbers to names")
        return len(value)

    def head_size(self, hidden: str, heads: str, name: str = "", *, alias: str = "") -> int:
        """Returns the width of an attention head, from its own field or as hidden size / number of heads."""
        if name and self._values.get(name) is not None:
            return self.count(name)
        width = self.count(hidden, alias=alias)
        count = self.count(heads, alias="num_attention_heads")
        if width % count != 0:
            raise self.refuse(
                hidden if self._values.get(hidden) is not None else alias, f"a multiple of the {count} heads"
            )
        return width // count
