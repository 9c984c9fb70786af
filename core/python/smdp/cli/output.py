"""Merges the output of many ranks, with each line prefixed by its rank."""

from __future__ import annotations

import os
import re
import select
import stat
import time

_IDLE_S = 0.2  # an unfinished line, such as a prompt or progress bar, is shown after this many seconds
_LIMIT = 1 << 16  # a line of more bytes than this is shown in pieces
_MOST_WAITING = 1 << 18  # bytes of output buffered for a slow reader; beyond that, ranks have to wait
_END = re.compile(rb"\r\n|\n|\r(?!$)")


class Line:
    """The current line of a terminal or file, shared by stdout and stderr if both lead to the same place.

    Attributes:
        owner: The stream whose unfinished text is on the line.
        is_at_start: Whether the text ended in a carriage return, so that the next text overwrites it.
    """

    def __init__(self) -> None:
        self.owner: Stream | None = None
        self.is_at_start = True


class Sink:
    """stdout or stderr of this process. Writing never blocks: output that does not fit is buffered.

    Attributes:
        moved_at: Time of the last write, on the clock of time.monotonic().
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
        """Returns the file descriptor."""
        return self._fd

    def write(self, data: bytes) -> None:
        """Writes data now or in a later drain(). After an error, data is discarded.

        Raises:
            OSError: The data cannot be written. Raised once only.
        """
        if not self._is_lost:
            self._waiting += data
            self.drain()

    def drain(self) -> None:
        """Writes as much of the buffered data as fits. Raises as write() does."""
        done = 0
        try:
            with memoryview(self._waiting) as view:
                while done < len(view) and self._ready.poll(0):
                    done += os.write(self._fd, view[done : done + self._most])
        except BlockingIOError:
            pass  # there is room, but not for this much
        except OSError:
            self._is_lost = True
            self._waiting.clear()
            raise
        if done:
            self.moved_at = time.monotonic()
        del self._waiting[:done]

    @property
    def is_behind(self) -> bool:
        """Whether some data has not been written yet."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether so much data is buffered that no more should be added."""
        return len(self._waiting) >= _MOST_WAITING


def _without_blocking(fd: int) -> tuple[int, int]:
    """Returns a descriptor for the same file, and how many bytes can be written once poll() reports room.

    A pipe then has room for PIPE_BUF bytes. A terminal may have less, so it is opened again in non-blocking
    mode; setting the mode of the existing descriptor would affect other processes that share it.
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
    """The output of one rank to stdout or stderr.

    Lines end at a newline, or at a carriage return, which progress bars use to return to the line's start.

    Attributes:
        sink: Where the output is written.
    """

    def __init__(self, prefix: str, sink: Sink) -> None:
        self._prefix = prefix.encode()
        self.sink = sink
        self._pending = b""
        self._since = 0.0

    def feed(self, data: bytes, now: float) -> None:
        """Adds data and writes the lines that are complete."""
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
        """Writes an unfinished line that has been waiting for some time."""
        if self._pending and now - self._since >= _IDLE_S:
            self.flush()

    def flush(self) -> None:
        """Writes an unfinished line."""
        pending, self._pending = self._pending, b""
        if pending == b"\r":
            self._pending = pending  # nothing to show yet
        elif pending.endswith(b"\r"):
            self._write([(pending[:-1], b"")])
            self._pending = b"\r"
        elif pending:
            self._write([(pending, b"")])

    def close(self) -> None:
        """Writes an unfinished line and ends it."""
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
                    continue  # leading carriage return of a progress bar
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
    """Returns the sinks of stdout and stderr, which share a Line if both lead to the same file."""
    line = Line()
    try:
        is_same = os.path.sameopenfile(stdout, stderr)
    except OSError:
        is_same = False
    return Sink(stdout, line), Sink(stderr, line if is_same else None)
