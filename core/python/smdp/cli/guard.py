"""Process groups of ranks, and the guard process that kills them if `smdp run` is killed."""

from __future__ import annotations

import contextlib
import os
import signal

FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)


class Guard:
    """A child process that kills the ranks' process groups if this process dies without releasing it.

    The child reads from a pipe whose only writer is this process, so end of file means that it has died.
    """

    def __init__(self) -> None:
        read, self._write = os.pipe2(os.O_CLOEXEC)
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _guard(read, self._write)
            finally:
                os._exit(0)
        os.close(read)

    def watch(self, group: int) -> None:
        """Adds a process group to those that the guard kills."""
        self._tell(b"%d\n" % group)

    def release(self) -> None:
        """Ends the guard without killing any process group."""
        self._tell(b"end\n")
        os.close(self._write)
        with contextlib.suppress(ChildProcessError):  # the guard was killed and has been waited for already
            os.waitpid(self._pid, 0)

    def _tell(self, line: bytes) -> None:
        # If the guard was killed, PR_SET_PDEATHSIG still ends the ranks with this process.
        with contextlib.suppress(BrokenPipeError):
            os.write(self._write, line)


def _guard(read: int, write: int) -> None:
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)
    os.close(write)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.closerange(3, read)
    os.closerange(read + 1, 1 << 16)
    with os.fdopen(read, "rb") as pipe:
        lines = pipe.read().split()
    if lines and lines[-1] != b"end":
        for line in lines:
            kill_group(int(line), signal.SIGKILL)


def kill_group(group: int, number: int) -> bool:
    """Sends a signal to a process group, and returns whether the group exists."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
