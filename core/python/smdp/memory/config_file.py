"""config.json of Hugging Face models, as plain data for the memory model."""

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
    """Read the architecture of a model.

    Args:
        source: A config.json, a folder that holds one, or what is in it. `model_type` says which family it
            is; `architectures` which class, and so which head (by default the one for pre-training).

    Raises:
        ConfigError: The file cannot be read, or a field is missing or wrong; the message names the field, its
            value and what is allowed.
        TypeError: The source is none of these.
    """
    if not isinstance(source, (str, PathLike, Mapping)):
        raise TypeError(
            f"[smdp] source = {shown(source)} is not valid; allowed: a path, or what is in a config.json"
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
        parameters(architecture)  # checks sizes that no field is wrong about alone
    except ValueError as error:
        raise ConfigError(f"{error} (in {name})") from None
    return architecture


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        ConfigError: There is none, it is no JSON, or no object.
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
        raise ConfigError(f"[smdp] {path} holds a {type(values).__name__}; allowed: a JSON object")
    return values
