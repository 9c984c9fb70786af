"""Merge the output of many ranks, each line with its rank in front."""

from __future__ import annotations

import os
import re
import time

_IDLE_S = 0.2  # a line without its end (a prompt, a progress bar) is shown after this
_LIMIT = 1 << 16  # and one longer than this is shown in pieces
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
    """One of our own descriptors."""

    def __init__(self, fd: int, line: Line | None = None) -> None:
        self._fd = fd
        self.line = line or Line()

    def write(self, data: bytes) -> None:
        """Write all of data.

        Raises:
            OSError: It cannot be written; BrokenPipeError: the reader has gone.
        """
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._fd, view) :]
            except BlockingIOError:
                time.sleep(0.01)


class Stream:
    """What one rank writes to stdout or to stderr.

    Lines end at newline, or at carriage return, with which progress bars go back to the line's start.
    """

    def __init__(self, prefix: str, sink: Sink) -> None:
        self._prefix = prefix.encode()
        self._sink = sink
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
        if self._sink.line.owner is self:
            self._sink.line.owner = None
            self._sink.write(b"\n")

    def _write(self, pieces: list[tuple[bytes, bytes]]) -> None:
        out = bytearray()
        line = self._sink.line
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
            self._sink.write(bytes(out))


def sinks(stdout: int = 1, stderr: int = 2) -> tuple[Sink, Sink]:
    """Make the sinks of stdout and stderr, knowing of each other if both end in the same place."""
    line = Line()
    try:
        is_same = os.path.sameopenfile(stdout, stderr)
    except OSError:
        is_same = False
    return Sink(stdout, line), Sink(stderr, line if is_same else None)
