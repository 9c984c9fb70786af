"""Horovod's elastic mode, which is refused by name."""

from __future__ import annotations

from typing import NoReturn


class NotThereError(NotImplementedError, AttributeError):
    """So that hasattr() answers no."""


def refuse(what: str) -> NoReturn:
    """Raise the error that says what to do instead.

    Raises:
        NotThereError: Always.
    """
    raise NotThereError(
        f"[smdp] {what} is not there: smdp's worlds have a fixed size. Start with torchrun --max-restarts,"
        " save checkpoints, and load the newest at the start."
    )
