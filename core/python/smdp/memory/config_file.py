"""Reads the config.json of Hugging Face models for the memory model."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from smdp import _json
from smdp._core import Architecture, parameters
from smdp._errors import ConfigError
from smdp._shown import shown
from smdp.memory.families import FAMILIES
from smdp.memory.fields import Fields


def read_config(source: str | PathLike[str] | Mapping[str, Any]) -> Architecture:
    """Returns the architecture of a model.

    Args:
        source: Path of a config.json or of a directory that contains one, or the content of the file as a
            mapping. `model_type` selects the family. `architectures` selects the class and thereby the head;
            by default, it is the head for pre-training.

    Raises:
        ConfigError: The file cannot be read, or a field is missing or invalid. The message has the field, its
            value, and what is allowed.
        TypeError: The source is neither a path nor a mapping.
    """
    if not isinstance(source, (str, PathLike, Mapping)):
        raise TypeError(
            f"[smdp] source = {shown(source)} is not valid; allowed: a path, or the content of a config.json"
            " as a mapping"
        )
    if isinstance(source, Mapping):
        values, name = source, "config"
    else:
        path = Path(source)
        path = path / "config.json" if path.is_dir() else path
        values, name = read_object(path), str(path)
    fields = Fields(values, name)
    architecture = FAMILIES[fields.choice("model_type", sorted(FAMILIES))](fields)
    try:
        parameters(architecture)  # checks sizes that depend on several fields
    except ValueError as error:
        raise ConfigError(f"{error} (in {name})") from None
    return architecture


def read_object(path: Path) -> dict[str, Any]:
    """Returns the content of a JSON file that contains an object.

    Raises:
        ConfigError: The file cannot be read, is not JSON, or does not contain an object.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"[smdp] cannot read {path}: {error}") from None
    try:
        values = _json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"[smdp] {path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"[smdp] {path} contains a {type(values).__name__}; allowed: a JSON object")
    return values
