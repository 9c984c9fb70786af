"""Prefixes on merged output: whole lines, pieces of lines, progress bars, bytes."""

from __future__ import annotations

import os
import pty
import select
import time
from pathlib import Path

import pytest

from smdp.cli.output import Line, Sink, Stream, sinks


class Memory(Sink):
    """Collects what would be written."""

    def __init__(self, line: Line | None = None) -> None:
        super().__init__(2, line)
        self.data = b""

    def write(self, data: bytes) -> None:
        self.data += data


@pytest.fixture
def sink() -> Memory:
    return Memory()


def test_lines_are_whole(sink: Memory) -> None:
    one, two = Stream("[rank 0] ", sink), Stream("[rank 1] ", sink)
    one.feed(b"he", 0.0)
    two.feed(b"you\nthere\n", 0.0)
    one.feed(b"llo\n", 0.0)
    assert sink.data == b"[rank 1] you\n[rank 1] there\n[rank 0] hello\n"


def test_bytes_pass_unchanged(sink: Memory) -> None:
    Stream("[rank 0] ", sink).feed(b"\xff\x00\xc3(\n", 0.0)
    assert sink.data == b"[rank 0] \xff\x00\xc3(\n"


def test_an_unfinished_line_shows_after_a_while(sink: Memory) -> None:
    one, two = Stream("[rank 0] ", sink), Stream("[rank 1] ", sink)
    one.feed(b"password: ", 0.0)
    one.flush_idle(0.1)
    assert sink.data == b""
    one.flush_idle(0.3)
    assert sink.data == b"[rank 0] password: "
    one.feed(b"ok\n", 0.4)
    assert sink.data == b"[rank 0] password: ok\n"
    one.feed(b"half", 0.5)
    one.flush_idle(0.8)
    two.feed(b"line\n", 0.9)
    one.feed(b" done\n", 1.0)
    assert sink.data.endswith(b"[rank 0] half\n[rank 1] line\n[rank 0]  done\n")


def test_the_last_line_gets_its_end(sink: Memory) -> None:
    stream = Stream("[rank 0] ", sink)
    stream.feed(b"bye", 0.0)
    stream.close()
    assert sink.data == b"[rank 0] bye\n"
    stream.close()
    assert sink.data == b"[rank 0] bye\n"


def test_windows_line_ends_in_two_pieces(sink: Memory) -> None:
    stream = Stream("[rank 0] ", sink)
    stream.feed(b"a\r", 0.0)
    stream.feed(b"\nb\r\n", 0.0)
    assert sink.data == b"[rank 0] a\r\n[rank 0] b\r\n"


def test_progress_bars_stay_on_their_line(sink: Memory) -> None:
    stream = Stream("[rank 0] ", sink)
    for text in (b"\r 10%", b"\r 20%", b"\r 30%"):
        stream.feed(text, 0.0)
    stream.flush_idle(1.0)
    stream.feed(b"\r 40%\n", 1.0)
    assert sink.data == b"".join(b"[rank 0]  %d0%%\r" % i for i in (1, 2, 3)) + b"[rank 0]  40%\n"


def test_lines_of_others_do_not_write_over_a_progress_bar(sink: Memory) -> None:
    bar, other = Stream("[rank 0] ", sink), Stream("[rank 1] ", Memory(sink.line))
    bar.feed(b"\r 10%\r 20%", 0.0)
    other.feed(b"hello\n", 0.1)
    bar.feed(b"\r 30%\n", 0.2)
    assert sink.data == b"[rank 0]  10%\r[rank 0]  20%\r[rank 0]  30%\n"
    assert other.sink.data == b"\n[rank 1] hello\n"  # type: ignore[attr-defined]


def test_stdout_and_stderr_to_one_place_share_their_line(tmp_path: Path) -> None:
    with open(tmp_path / "one", "wb") as one, open(tmp_path / "two", "wb") as two:
        out, err = sinks(one.fileno(), one.fileno())
        assert out.line is err.line
        out, err = sinks(one.fileno(), two.fileno())
        assert out.line is not err.line


def test_a_very_long_line_comes_in_pieces(sink: Memory) -> None:
    stream = Stream("> ", sink)
    stream.feed(b"x" * 70_000, 0.0)
    stream.feed(b"y\n", 0.0)
    assert sink.data == b"> " + b"x" * 70_000 + b"y\n"


@pytest.mark.parametrize("blocks", [False, True])
def test_sink_writes_everything_to_a_slow_reader(blocks: bool) -> None:
    read, write = os.pipe()
    os.set_blocking(write, blocks)
    pid = os.fork()
    if pid == 0:
        os.close(write)
        total = 0
        while data := os.read(read, 1000):
            total += len(data)
        os._exit(0 if total == 300_000 else 1)
    os.close(read)
    sink = Sink(write)
    sink.write(b"z" * 300_000)
    while sink.is_behind:
        select.select([], [sink], [])
        sink.drain()
    os.close(write)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_terminal_that_nobody_reads_does_not_block() -> None:
    ours, theirs = pty.openpty()
    sink = Sink(theirs)
    text = b"".join(b"%d\n" % i for i in range(20_000))
    begin = time.monotonic()
    for start in range(0, len(text), 777):
        sink.write(text[start : start + 777])
    assert time.monotonic() - begin < 5
    assert sink.is_behind
    got = bytearray()
    while len(got) < len(text) + 20_000:  # each line end is two bytes on a terminal
        got += os.read(ours, 1 << 16)
        sink.drain()
    assert bytes(got).replace(b"\r\n", b"\n") == text
    assert os.get_blocking(theirs)
    os.close(theirs)
    os.close(ours)
