"""Checks that a plugin's framework is installed and new enough; the error has the command that fixes it."""

from __future__ import annotations

import re
from importlib import import_module
from typing import NamedTuple

__all__ = ["FRAMEWORKS", "Framework", "require"]


class Framework(NamedTuple):
    """A package that a plugin imports.

    Attributes:
        title: Its name as written in prose.
        oldest: The oldest supported version, as in pyproject.toml.
        extra: The extra of smdp that installs it.
    """

    title: str
    oldest: str
    extra: str


FRAMEWORKS = {
    "torch": Framework("PyTorch", "2.13", "torch"),
    "tensorflow": Framework("TensorFlow", "2.13", "tensorflow"),
    "transformers": Framework("transformers", "5.23", "transformers"),
    "accelerate": Framework("Accelerate", "1.15", "transformers"),
    "lightning": Framework("Lightning", "2.6", "lightning"),
}


def require(plugin: str, *names: str) -> None:
    """Imports the frameworks that a plugin requires.

    Args:
        plugin: The plugin's module, for the message.
        names: Keys of FRAMEWORKS.

    Raises:
        ImportError: A framework is not installed or too old. Other errors of its import are not caught.
    """
    for name in names:
        framework = FRAMEWORKS[name]
        cure = f'pip install "smdp[{framework.extra}]"'
        try:
            module = import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                raise
            raise ImportError(
                f"[smdp] {plugin} requires {framework.title}, which is not installed: {cure}", name=name
            ) from None
        found = str(getattr(module, "__version__", ""))
        if found and _release(found) < _release(framework.oldest):
            raise ImportError(
                f"[smdp] {plugin} requires {framework.title} {framework.oldest} or newer, but {found} is"
                f" installed: {cure}",
                name=name,
            )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
