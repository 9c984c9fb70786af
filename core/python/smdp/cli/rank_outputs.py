"""Reads the output of ranks from their pipes and merges it into this process's stdout and stderr."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import IO

from smdp.cli.output import Sink, Stream, sinks

DRAIN_S = 1.0  # how long to wait for output from children that outlive their rank


@dataclass
class _Output:
    """The output of one rank to stdout or stderr."""

    rank: int
    is_stderr: bool
    pipe: IO[bytes]
    stream: Stream
    left: int = 1 << 20  # bytes that may still be read after all ranks have ended


class RankOutputs:
    """Reads the pipes of ranks and writes to stdout and stderr, without ever blocking.

    Args:
        selector: Waits for the pipes, and for stdout and stderr while they have buffered data.
        heard: Called with the rank, whether the output is stderr, and the output.
        unwritable: Called with the error if stdout or stderr cannot be written.
    """

    def __init__(
        self,
        selector: selectors.BaseSelector,
        heard: Callable[[int, bool, bytes], None],
        unwritable: Callable[[OSError], None],
    ) -> None:
        self._selector = selector
        self._heard = heard
        self._unwritable = unwritable
        self._outputs: dict[int, _Output] = {}
        self._sinks = sinks()

    def __contains__(self, fd: int) -> bool:
        return fd in self._outputs

    def __len__(self) -> int:
        return len(self._outputs)

    def add(self, rank: int, process: subprocess.Popen[bytes], prefix: str) -> None:
        """Adds the pipes of a rank, whose lines get the prefix."""
        out, err = self._sinks
        for pipe, sink in ((process.stdout, out), (process.stderr, err)):
            assert pipe is not None
            os.set_blocking(pipe.fileno(), False)
            self._outputs[pipe.fileno()] = _Output(rank, sink is err, pipe, Stream(prefix, sink))

    def watch(self, is_over: bool) -> None:
        """Selects stdout and stderr while they have buffered data, and ranks unless that buffer is full."""
        watched = self._selector.get_map()
        wanted: list[tuple[Sink | IO[bytes], int, bool]] = [
            *((sink, selectors.EVENT_WRITE, sink.is_behind) for sink in self._sinks),
            *(
                (one.pipe, selectors.EVENT_READ, is_over or not one.stream.sink.is_full)
                for one in self._outputs.values()
            ),
        ]
        for file, events, is_wanted in wanted:
            if is_wanted and file not in watched:
                self._selector.register(file, events)
            elif not is_wanted and file in watched:
                self._selector.unregister(file)

    def read(self, fd: int, is_over: bool) -> None:
        """Reads a pipe that is ready; after all ranks have ended, only a limited number of bytes."""
        output = self._outputs[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._heard(output.rank, output.is_stderr, data)
            self._guarded(partial(output.stream.feed, data, time.monotonic()))
            output.left -= len(data) if is_over else 0
        if not data or output.left < 0:
            self._close(fd)

    def write_on(self) -> None:
        """Writes unfinished lines that have waited for some time, and buffered output."""
        now = time.monotonic()
        for output in list(self._outputs.values()):
            self._guarded(partial(output.stream.flush_idle, now))
        for sink in self._sinks:
            self._guarded(sink.drain)

    def write_error(self, text: str) -> None:
        """Writes to stderr, after the output of ranks that is waiting to be written there.

        Raises:
            OSError: stderr cannot be written.
        """
        self._sinks[1].write(text.encode(errors="replace"))

    def is_silent(self, rank: int) -> bool:
        """Returns whether all output of a rank has been read."""
        return all(output.rank != rank for output in self._outputs.values())

    def is_being_read(self, now: float, since: float) -> bool:
        """Returns whether stdout or stderr has buffered data and its reader has read something recently.

        Args:
            now: The current time, on the clock of time.monotonic().
            since: The time at which the last rank ended.
        """
        behind = [sink.moved_at for sink in self._sinks if sink.is_behind]
        return bool(behind) and now - max(since, *behind) < DRAIN_S

    @property
    def is_behind(self) -> bool:
        """Whether stdout or stderr has buffered data."""
        return any(sink.is_behind for sink in self._sinks)

    def close(self) -> None:
        """Stops reading the pipes that are still open."""
        for fd in list(self._outputs):
            self._close(fd)

    def _close(self, fd: int) -> None:
        output = self._outputs.pop(fd)
        if output.pipe in self._selector.get_map():
            self._selector.unregister(output.pipe)
        self._guarded(output.stream.close)
        output.pipe.close()

    def _guarded(self, write: Callable[[], None]) -> None:
        try:
            write()
        except OSError as error:
            self._unwritable(error)
