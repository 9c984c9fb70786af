"""What the tests of `smdp run` share."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

# What every script begins with.
_BEGIN = """
import os, signal, sys, time
rank, size = int(os.environ['RANK']), int(os.environ['WORLD_SIZE'])


def wait_until(condition):
    while not condition():
        time.sleep(0.01)


def meet():
    # All ranks have come so far.
    open(f'{__file__}.{rank}', 'w').close()
    wait_until(lambda: all(os.path.exists(f'{__file__}.{other}') for other in range(size)))


def note_time():
    with open(f'{__file__}.time', 'w') as file:
        file.write(str(time.monotonic()))


def stay():
    # Until a signal ends the process; in parts, as one that comes right before a sleep does not end that.
    while True:
        time.sleep(0.1)


def leave_first(leaver):
    # Of the others returns who finds that rank gone, and its end seen by the launcher.
    link = f'{__file__}.process'
    if rank != leaver:
        wait_until(lambda: os.path.islink(link) and not os.path.exists(link))
        return
    os.symlink(f'/proc/{os.getpid()}', link)
"""


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(_BEGIN + text)
        return path

    return write


@pytest.fixture
def default_signals() -> Callable[[], None]:
    """For who starts a process: a test run in the background ignores some, and so would what it starts."""

    def reset() -> None:
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)

    return reset
