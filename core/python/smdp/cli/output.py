"""Merge the output of many ranks, each line with its rank in front."""

from __future__ import annotations

import os
import re
import select
import stat
import time

_IDLE_S = 0.2  # a line without its end (a prompt, a progress bar) is shown after this
_LIMIT = 1 << 16  # and one longer than this is shown in pieces
_MOST_WAITING = 1 << 18  # bytes of output that wait for a slow reader; then ranks have to wait, too
_END = re.compile(rb"\r\n|\n|\r(?!$)")


class Line:
    """The line on which a terminal or file stands; shared by our descriptors that lead to the same one.

    Attributes:
        owner: Whose unfinished text stands there.
        is_at_start: It ended in a carriage return: what comes next overwrites it.
    """

    def __init__(self) -> None:
        self.owner: Stream | None = None
        self.is_at_start = True


class Sink:
    """One of our own descriptors. Writing never blocks: what finds no room is kept.

    Attributes:
        moved_at: When something was written last, by time.monotonic().
    """

    def __init__(self, fd: int, line: Line | None = None) -> None:
        self._fd, self._most = _without_blocking(fd)
        self.line = line or Line()
        self.moved_at = 0.0
        self._waiting = bytearray()
        self._is_lost = False
        self._ready = select.poll()
        self._ready.register(self._fd, select.POLLOUT)

    def fileno(self) -> int:
        """Give the descriptor."""
        return self._fd

    def write(self, data: bytes) -> None:
        """Write data, now or in drain(); nothing after an error.

        Raises:
            OSError: It cannot be written; BrokenPipeError: the reader has gone. Once.
        """
        if not self._is_lost:
            self._waiting += data
            self.drain()

    def drain(self) -> None:
        """Write what there is room for. Raises as write() does."""
        done = 0
        try:
            with memoryview(self._waiting) as view:
                while done < len(view) and self._ready.poll(0):
                    done += os.write(self._fd, view[done : done + self._most])
        except BlockingIOError:
            pass  # there is some room, but not for this
        except OSError:
            self._is_lost = True
            self._waiting.clear()
            raise
        if done:
            self.moved_at = time.monotonic()
        del self._waiting[:done]

    @property
    def is_behind(self) -> bool:
        """Whether something is not written yet."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether so much is not that nothing should be added."""
        return len(self._waiting) >= _MOST_WAITING


def _without_blocking(fd: int) -> tuple[int, int]:
    """Give a descriptor for the same place, and how many bytes do not block once poll() has seen room.

    A pipe has room for so much then. A terminal may have less, and is opened once more: whether a descriptor
    blocks is shared with whoever else has it.
    """
    try:
        if os.isatty(fd):
            return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY), 1 << 12
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd, 1 << 16
    except OSError:
        pass
    return fd, select.PIPE_BUF


class Stream:
    """What one rank writes to stdout or to stderr.

    Lines end at newline, or at carriage return, with which progress bars go back to the line's start.

    Attributes:
        sink: Where it goes.
    """

    def __init__(self, prefix: str, sink: Sink) -> None:
        self._prefix = prefix.encode()
        self.sink = sink
        self._pending = b""
        self._since = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Take data, write the lines that are complete."""
        if not self._pending:
            self._since = now
        self._pending += data
        out = []
        start = 0
        for match in _END.finditer(self._pending):
            out.append((self._pending[start : match.start()], match.group()))
            start = match.end()
        if start:
            self._pending = self._pending[start:]
            self._since = now
        self._write(out)
        if len(self._pending) > _LIMIT:
            self.flush()

    def flush_idle(self, now: float) -> None:
        """Show an unfinished line that has been waiting."""
        if self._pending and now - self._since >= _IDLE_S:
            self.flush()

    def flush(self) -> None:
        """Show an unfinished line."""
        pending, self._pending = self._pending, b""
        if pending == b"\r":
            self._pending = pending  # nothing to see yet
        elif pending.endswith(b"\r"):
            self._write([(pending[:-1], b"")])
            self._pending = b"\r"
        elif pending:
            self._write([(pending, b"")])

    def close(self) -> None:
        """Show and end an unfinished line."""
        self._pending = self._pending.removesuffix(b"\r")
        self.flush()
        if self.sink.line.owner is self:
            self.sink.line.owner = None
            self.sink.write(b"\n")

    def _write(self, pieces: list[tuple[bytes, bytes]]) -> None:
        out = bytearray()
        line = self.sink.line
        for text, end in pieces:
            if line.owner is not self:
                if not text and end == b"\r":
                    continue  # a progress bar's leading carriage return
                if line.owner is not None:
                    out += b"\n"
                line.is_at_start = True
            if line.is_at_start and (text or end != b"\n" or line.owner is not self):
                out += self._prefix
            out += text + end
            line.owner = self if end in (b"", b"\r") else None
            line.is_at_start = end != b""
        if out:
            self.sink.write(bytes(out))


def sinks(stdout: int = 1, stderr: int = 2) -> tuple[Sink, Sink]:
    """Make the sinks of stdout and stderr, knowing of each other if both end in the same place."""
    line = Line()
    try:
        is_same = os.path.sameopenfile(stdout, stderr)
    except OSError:
        is_same = False
    return Sink(stdout, line), Sink(stderr, line if is_same else None)
