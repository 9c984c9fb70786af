"""From the words behind `smdp run` to the command that every rank executes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence


class CommandError(ValueError):
    """The command is no Python file, no module and no program.

    Args:
        message: What it is.
        code: The exit code, as a shell gives it: 127, or 126 where what is there cannot be executed.
    """

    def __init__(self, message: str, code: int = 127) -> None:
        super().__init__(message)
        self.code = code


def command_line(command: Sequence[str], *, module: bool = False) -> list[str]:
    """Make the command that a rank executes.

    Raises:
        CommandError: There is no such thing.
    """
    command = [word for index, word in enumerate(command) if index or word != "--"]
    if not command:
        raise CommandError("nothing to run; give a Python file, -m and a module, or a program")
    first = command[0]
    if module:
        return [sys.executable, "-u", "-m", *command]
    if first.endswith((".py", ".pyc", ".pyz")):
        if not os.path.isfile(first):
            raise CommandError(f"no such file: {first}")
        return [sys.executable, "-u", *command]
    if shutil.which(first) is None:
        if os.path.isdir(first):
            raise CommandError(f"{first!r} is a folder; give a Python file, -m and a module, or a program")
        if os.path.isfile(first) and os.sep in first:
            raise CommandError(
                f"{first!r} is not executable: chmod +x, or name what runs it, e.g. smdp run -- bash {first}",
                126,
            )
        raise CommandError(f"{first!r} is neither a Python file nor a program on PATH")
    return list(command)
