"""What Horovod has and smdp has not, refused by name."""

from __future__ import annotations

from typing import NoReturn


class NotThereError(NotImplementedError, AttributeError):
    """So that hasattr() answers no."""


def refuse(what: str) -> NoReturn:
    """Raise the error that says what to do instead of the elastic mode.

    Raises:
        NotThereError: Always.
    """
    raise NotThereError(
        f"[smdp] {what} is not there: smdp's worlds have a fixed size. Start with torchrun --max-restarts,"
        " save checkpoints, and load the newest at the start."
    )


def no_attribute(module: str, name: str) -> NoReturn:
    """Raise for a name that a module does not have.

    Raises:
        AttributeError: Always.
    """
    if name == "elastic":
        refuse(f"{module}.elastic")
    if name == "Adasum":
        raise AttributeError("[smdp] Adasum is not there; use Average or Sum.")
    raise AttributeError(f"[smdp] {module} has no {name!r}; see the page on moving from Horovod.")
