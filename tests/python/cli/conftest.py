"""What the tests of `smdp run` share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text("import os, signal, sys, time\nrank = int(os.environ['RANK'])\n" + text)
        return path

    return write


@pytest.fixture
def default_signals() -> Callable[[], None]:
    """For who starts a process: a test run in the background ignores some, and so would what it starts."""

    def reset() -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    return reset
