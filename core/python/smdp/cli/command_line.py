"""Converts the arguments of `smdp run` to the command that every rank executes."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence


class CommandError(ValueError):
    """The command is not a Python file, a module, or a program.

    Args:
        message: Description of the problem.
        code: The shell's exit code for it: 127, or 126 if the file exists but is not executable.
    """

    def __init__(self, message: str, code: int = 127) -> None:
        super().__init__(message)
        self.code = code


def command_line(command: Sequence[str], *, module: bool = False) -> list[str]:
    """Returns the command that a rank executes.

    Raises:
        CommandError: The command does not exist or cannot be executed.
    """
    command = [word for index, word in enumerate(command) if index or word != "--"]
    if not command:
        raise CommandError("no command to run; pass a Python file, -m and a module, or a program")
    first = command[0]
    if module:
        return [sys.executable, "-u", "-m", *command]
    if first.endswith((".py", ".pyc", ".pyz")):
        if not os.path.isfile(first):
            raise CommandError(f"no such file: {first}")
        return [sys.executable, "-u", *command]
    if shutil.which(first) is None:
        if os.path.isdir(first):
            raise CommandError(f"{first!r} is a directory; pass a Python file, -m and a module, or a program")
        if os.path.isfile(first) and os.sep in first:
            raise CommandError(
                f"{first!r} is not executable: run chmod +x on it, or name its interpreter, e.g."
                f" smdp run -- bash {first}",
                126,
            )
        raise CommandError(f"{first!r} is neither a Python file nor a program on PATH")
    return list(command)
