"""What a plugin says where its framework is missing or too old: one line with the command that cures it."""

from __future__ import annotations

import re
from importlib import import_module
from typing import NamedTuple

__all__ = ["FRAMEWORKS", "Framework", "require"]


class Framework(NamedTuple):
    """A package that a plugin imports.

    Attributes:
        title: Its name as people write it.
        oldest: The oldest version that the plugin works with, as in pyproject.toml.
        extra: The extra of smdp that brings it.
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
    """Import what a plugin stands on.

    Args:
        plugin: The plugin's module, for the message.
        names: Keys of FRAMEWORKS.

    Raises:
        ImportError: One is not installed, or is older than what the plugin works with. What else goes wrong
            in its import is not caught.
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
                f"[smdp] {plugin} needs {framework.title}, which is not installed: {cure}", name=name
            ) from None
        found = str(getattr(module, "__version__", ""))
        if found and _release(found) < _release(framework.oldest):
            raise ImportError(
                f"[smdp] {plugin} needs {framework.title} {framework.oldest} or newer, not {found}: {cure}",
                name=name,
            )


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
