"""The rank or host that failed first, and the failure file that reports it to SageMaker."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass

from smdp import SmdpError

_REASON_BYTES = 1024  # SageMaker shows this many bytes
# Errors of ranks whose peer has died. One is reported as the first failure only if there is no other.
_CONSEQUENCE = re.compile(r"PeerLostError|Connection (?:closed|reset) by peer|DistNetworkError|Broken pipe")


class TrainingError(SmdpError):
    """The training job failed.

    Attributes:
        errno: The exit code. sagemaker-training ends the container with this attribute of an exception.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.errno = code


@dataclass(frozen=True)
class Failure:
    """A rank that failed, or a host that was lost.

    Attributes:
        host: Name of the host.
        rank: The rank, or None for a whole host.
        code: Exit code as a shell reports it: 128 + the signal number for a signal.
        text: The end of the rank's stderr, or what happened to the host.
        is_restart: Whether the rank has saved its work and asks for a restart.
    """

    host: str
    rank: int | None
    code: int
    text: str
    is_restart: bool = False

    @property
    def is_consequence(self) -> bool:
        """Whether another rank's failure seems to have caused this one."""
        return self.rank is not None and _CONSEQUENCE.search(self.text) is not None

    @property
    def headline(self) -> str:
        """The rank, host and cause in one line."""
        if self.rank is None:
            return f"[smdp] host {self.host}: {self.text}"
        who = f"[smdp] rank {self.rank} on {self.host}"
        if self.is_restart:
            return f"{who} has saved its work and asks to be started again: exit code {self.code}"
        if self.code == 128 + signal.SIGTERM:
            return f"{who} ended on SIGTERM, which SageMaker sends to stop a container"
        if self.code == 128 + signal.SIGKILL:
            return f"{who} failed first: killed by SIGKILL, which the kernel sends if memory runs out"
        if self.code > 128:
            with contextlib.suppress(ValueError):
                return f"{who} failed first: killed by {signal.Signals(self.code - 128).name}"
        return f"{who} failed first: exit code {self.code}"

    @property
    def reason(self) -> str:
        """The headline and the end of stderr, as much of it as SageMaker shows."""
        if self.rank is None or not self.text:
            return self.headline
        room = _REASON_BYTES - len(self.headline.encode()) - 1
        return f"{self.headline}\n{end_of(self.text, room)}"


def end_of(text: str, limit: int) -> str:
    """Returns the last lines of a text that fit into `limit` bytes, or the end of a line that is too long."""
    text = text.strip()
    data = text.encode()
    if len(data) <= limit:
        return text
    tail = data[-limit:].decode(errors="ignore")
    _, newline, lines = tail.partition("\n")
    return lines if newline and lines else tail


def write_failure(path: str, text: str) -> None:
    """Writes the failure file. Errors are ignored, because the log has the same text."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.encode()[:_REASON_BYTES].decode(errors="ignore"))
