"""Delivers this process's signals through a file descriptor, for use in a select loop."""

from __future__ import annotations

import os
import signal
from types import TracebackType

from smdp.cli.guard import FORWARDED


class Signals:
    """A context manager that writes signals to a descriptor and restores the old handlers on exit.

    Attributes:
        fd: A descriptor that is readable when a signal has arrived.
    """

    def __enter__(self) -> Signals:
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._before = {
            number: signal.signal(number, lambda *_: None)
            for number in (*FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
            if signal.getsignal(number) is not signal.SIG_IGN
            or number == signal.SIGCHLD  # nohup ignores SIGHUP
        }
        self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self.fd)
        os.close(self._write)

    def read(self) -> bytes:
        """Returns the numbers of the signals that have arrived."""
        return os.read(self.fd, 4096)
