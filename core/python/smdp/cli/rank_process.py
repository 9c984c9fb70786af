"""The process of one rank: starting it, describing why it could not start, and describing its exit code."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from smdp import _core

_PR_SET_PDEATHSIG = 1
# Resource shortages that keep a process from starting, and the system call that reports them.
_SHORTAGES = {
    errno.EMFILE: "pipe2",
    errno.ENFILE: "pipe2",
    errno.EAGAIN: "fork",
    errno.ENOMEM: "fork",
}
_OWN_FILES = 16  # the most files that smdp run opens besides the pipes of ranks


@dataclass
class Rank:
    """A process that was started."""

    number: int
    process: subprocess.Popen[bytes]
    code: int | None = None  # the exit code in a shell's notation


def start_rank(
    number: int, argv: Sequence[str], environ: Mapping[str, str], *, cwd: str | None, cpus: set[int] | None
) -> Rank:
    """Starts a rank as the leader of a process group, with pipes for its output.

    Args:
        number: The rank. Rank 0 inherits this process's stdin unless that is a terminal, which only its
            foreground process group can read.
        argv: The command.
        environ: The environment variables.
        cwd: The working directory. Default: that of this process.
        cpus: The CPUs the rank may run on. Default: those of this process.

    Raises:
        OSError: The process cannot be started.
        subprocess.SubprocessError: The process ended before it executed the command.
    """
    process = subprocess.Popen(
        argv,
        env=environ,
        cwd=cwd,
        stdin=None if number == 0 and not _is_terminal(0) else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        preexec_fn=_child_setup(cpus),
    )
    return Rank(number, process)


def why_not_started(error: OSError | subprocess.SubprocessError) -> str:
    """Returns why a process cannot be started, with the limit that was reached."""
    if not isinstance(error, OSError) or error.errno not in _SHORTAGES:
        return str(error)
    text = _core.describe_shortage(_SHORTAGES[error.errno], "its process and pipes", error.errno)
    needed = f" smdp run itself needs two for each rank and {_OWN_FILES} more."
    return text.removeprefix("[smdp] ") + (needed if error.errno == errno.EMFILE else "")


def describe_exit(code: int | None) -> str:
    """Returns an exit code in words, with the name of the signal if one killed the process."""
    if code is not None and code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exit code {code}"


def _child_setup(cpus: set[int] | None) -> Callable[[], None]:
    """Returns the function that runs between fork and exec. It must not look up anything itself."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def setup() -> None:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before prctl()
            os._exit(1)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)

    return setup


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False
