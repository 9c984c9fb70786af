"""Programs that are forked from a process which has imported torch, with subprocess.Popen's names."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "processes"))
from spawn import template_of


class Program:
    """A running program.

    Args:
        code: Its text.
        arguments: sys.argv from 1 on.
        env: All its variables; none that is read when torch is imported.
    """

    def __init__(self, code: str, arguments: list[str], env: Mapping[str, str]) -> None:
        folder = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        script = Path(folder, "program.py")
        script.write_text(code)
        self._log = Path(folder, "output")
        self._log.touch()
        template = template_of(("torch.distributed", "torch._dynamo", "pytest"), 0)
        self._process = template.start([str(script), *arguments], env, str(self._log))

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it."""
        self._process.kill()

    def communicate(self, timeout: float) -> tuple[str, None]:
        """Wait for its end and give all that it has printed.

        Raises:
            subprocess.TimeoutExpired: It has not ended in time; it is killed.
        """
        deadline = time.monotonic() + timeout
        while self.returncode is None:
            if time.monotonic() > deadline:
                self.kill()
                raise subprocess.TimeoutExpired("program.py", timeout, self.output)
            time.sleep(0.02)
        return self.output, None

    def read_line(self, number: int) -> str:
        """Wait for a line of its output, counted from 0."""
        while (lines := self.output.split("\n"))[number + 1 :] == []:
            assert self.returncode is None, self.output
            time.sleep(0.02)
        return lines[number]
