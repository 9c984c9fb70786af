"""The launcher of one of several hosts, like `smdp run`. Ranks end together on all hosts."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence

from smdp.cli.launcher import Launcher
from smdp.sagemaker.failure import Failure
from smdp.sagemaker.host_channel import HostChannel

_TAIL_BYTES = 8192
_TEXT_BYTES = 1024
_LAST_WORDS_S = 0.5  # how long to wait for the last output of a failed rank


class HostLauncher(Launcher):
    """Starts the ranks of this host, and stops them when a rank of any host fails.

    Args:
        argv: The command of every rank.
        environments: The environment variables, one mapping per rank.
        host: Name of this host.
        channel: Channel to the other hosts, after meet().
        restart_code: The exit code by which a rank asks for a restart.
        first_rank: The first rank of this host.
        cwd: The working directory of the ranks.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        host: str,
        channel: HostChannel,
        restart_code: int,
        first_rank: int,
        cwd: str,
    ) -> None:
        super().__init__(argv, environments, restart_code=restart_code, first_rank=first_rank, cwd=cwd)
        self._host = host
        self._channel = channel
        self._tails: dict[int, bytes] = {}
        self._failed: list[tuple[int, int, float]] = []  # rank, exit code, when
        self._asked: list[Failure] = []
        self._has_ended = False
        self._is_told = False

    def heard(self, rank: int, is_stderr: bool, data: bytes) -> None:
        """Keeps the end of a rank's stderr."""
        if is_stderr:
            self._tails[rank] = (self._tails.get(rank, b"") + data)[-_TAIL_BYTES:]

    def ended(self, rank: int, code: int) -> None:
        """Records a rank that failed or asks for a restart, but not one that was stopped."""
        was_stopped = self.is_stopping and code in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
        if not code or self._is_told or was_stopped:
            return
        if self.is_failure(code):
            self._failed.append((rank, code, time.monotonic()))
            return
        last = Failure(self._host, rank, code, self._last_words(rank), is_restart=code == self._restart_code)
        self._asked.append(last)
        if last.is_restart:
            self._channel.asked(last)

    def tick(self) -> None:
        """Reports failures once a rank's last output has arrived, and stops all ranks if a host failed."""
        for failed in list(self._failed):
            rank, code, since = failed
            if self.is_silent(rank) or time.monotonic() - since > _LAST_WORDS_S:
                self._failed.remove(failed)
                text = "\n".join(filter(None, [self._last_words(rank).rstrip(), self.out_of_memory]))
                self._channel.failed(Failure(self._host, rank, code, text))
        self._channel.poll()
        if self._channel.failure is not None and not self._is_told:
            self._is_told = True
            if self._channel.failure.host != self._host:
                self.write_error(f"{self._channel.failure.headline}; the ranks of this host are stopped\n")
            self.stop()
        if self._channel.has_asked:
            self.grant_grace()  # does nothing the second time

    def is_done(self) -> bool:
        """Returns whether all hosts have ended. Until then, the first host must forward messages."""
        if self._failed:
            return False
        if not self._has_ended:
            self._has_ended = True
            self._channel.ended(self._asked[0] if self._asked else None)
        return self._channel.is_over

    def _last_words(self, rank: int) -> str:
        return self._tails.get(rank, b"").decode(errors="replace")[-_TEXT_BYTES:]
