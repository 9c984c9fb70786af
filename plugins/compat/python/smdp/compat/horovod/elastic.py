"""Horovod's elastic mode, which is refused by name."""

from __future__ import annotations

from typing import NoReturn


def refuse(what: str) -> NoReturn:
    """Raise the error that says what to do instead.

    Raises:
        NotImplementedError: Always.
    """
    raise NotImplementedError(
        f"[smdp] {what} is not there: smdp's worlds have a fixed size. Start with torchrun --max-restarts,"
        " save checkpoints, and load the newest at the start."
    )
