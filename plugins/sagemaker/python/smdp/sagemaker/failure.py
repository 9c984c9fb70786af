"""Who failed first, and the file by which SageMaker gets to know."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from dataclasses import dataclass

from smdp import SmdpError

_REASON_BYTES = 1024  # SageMaker shows that much
# What ranks die of because another one has died: it is not named first while there is anything else.
_CONSEQUENCE = re.compile(r"PeerLostError|Connection (?:closed|reset) by peer|DistNetworkError|Broken pipe")


class TrainingError(SmdpError):
    """A job that failed.

    Attributes:
        errno: The exit code; sagemaker-training ends the container with the number of this name.
    """

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.errno = code


@dataclass(frozen=True)
class Failure:
    """A rank that failed, or a host that is gone.

    Attributes:
        host: Its name.
        rank: None for a whole host.
        code: What a shell would give: above 128 for signals.
        text: The last that the rank wrote to stderr, or what is known of the host.
        is_restart: The rank has saved its work and asks to be started again.
    """

    host: str
    rank: int | None
    code: int
    text: str
    is_restart: bool = False

    @property
    def is_consequence(self) -> bool:
        """Whether it looks as if another rank's death has caused it."""
        return self.rank is not None and _CONSEQUENCE.search(self.text) is not None

    @property
    def headline(self) -> str:
        """Who, where and how, in one line."""
        if self.rank is None:
            return f"[smdp] host {self.host}: {self.text}"
        who = f"[smdp] rank {self.rank} on {self.host}"
        if self.is_restart:
            return f"{who} has saved its work and asks to be started again: exit code {self.code}"
        if self.code == 128 + signal.SIGTERM:
            return f"{who} ended on SIGTERM, with which SageMaker stops a container"
        if self.code == 128 + signal.SIGKILL:
            return f"{who} failed first: killed by SIGKILL; by the kernel, if memory ran out"
        if self.code > 128:
            with contextlib.suppress(ValueError):
                return f"{who} failed first: killed by {signal.Signals(self.code - 128).name}"
        return f"{who} failed first: exit code {self.code}"

    @property
    def reason(self) -> str:
        """The headline and as much of the end of stderr as SageMaker shows."""
        if self.rank is None or not self.text:
            return self.headline
        room = _REASON_BYTES - len(self.headline.encode()) - 1
        return f"{self.headline}\n{end_of(self.text, room)}"


def end_of(text: str, limit: int) -> str:
    """Give the last lines of a text that fit into limit bytes; of a single long line its end."""
    text = text.strip()
    data = text.encode()
    if len(data) <= limit:
        return text
    tail = data[-limit:].decode(errors="ignore")
    _, newline, lines = tail.partition("\n")
    return lines if newline and lines else tail


def write_failure(path: str, text: str) -> None:
    """Write the failure file; what cannot be written is in the log all the same."""
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text.encode()[:_REASON_BYTES].decode(errors="ignore"))
