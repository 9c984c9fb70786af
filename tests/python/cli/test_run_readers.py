"""`smdp run` and who reads its output: slowly, not at all, or no more."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def filling(
    script: Callable[[str], Path], default_signals: Callable[[], None], ends: str
) -> Iterator[tuple[subprocess.Popen[bytes], int, IO[bytes]]]:
    """Rank 0 writes more than a pipe holds, and nobody reads; then as said. Last: the launcher's stderr."""
    path = script(
        "open(f'{sys.argv[1]}.{rank}', 'w').close()\n"
        "if rank == 0:\n"
        "    print('x' * 4_000_000)\n"
        "    print('written')\n" + ends
    )
    read, write = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-m", "smdp", "run", "-n", "2", str(path), str(path)],
        stdout=write,
        stderr=subprocess.PIPE,
        preexec_fn=default_signals,
    ) as process:
        os.close(write)
        try:
            deadline = time.monotonic() + 20
            while not all(Path(f"{path}.{rank}").exists() for rank in range(2)):
                assert time.monotonic() < deadline
                time.sleep(0.01)
            assert process.stderr is not None
            yield process, read, process.stderr
        finally:
            process.kill()
            os.close(read)


def test_a_reader_that_reads_nothing_stops_no_signal(
    script: Callable[[str], Path], default_signals: Callable[[], None]
) -> None:
    with filling(script, default_signals, "time.sleep(60)\n") as (process, _, _):
        time.sleep(0.5)  # a signal just before a write that blocks would not end that: rank 0 is in it by now
        process.send_signal(signal.SIGINT)
        begin = time.monotonic()
        assert process.wait(timeout=20) in (128 + signal.SIGINT, 1)
        assert time.monotonic() - begin < 10


def test_a_reader_that_reads_nothing_hides_no_failure(
    script: Callable[[str], Path], default_signals: Callable[[], None]
) -> None:
    ends = (
        "while not os.path.exists(f'{sys.argv[1]}.0'): time.sleep(0.01)\n"
        "if rank == 1: sys.exit(9)\n"
        "time.sleep(60)\n"
    )
    with filling(script, default_signals, ends) as (process, read, errors):
        assert b"rank 1 (pid " in errors.readline()
        # It ends once somebody has read the rest.
        assert process.poll() is None
        while os.read(read, 1 << 16):
            pass
        assert process.wait(timeout=20) == 9


def test_a_slow_reader_gets_all(script: Callable[[str], Path], default_signals: Callable[[], None]) -> None:
    with filling(script, default_signals, "") as (process, read, _):
        got = bytearray()
        while data := os.read(read, 1 << 14):
            got += data
            time.sleep(0.0005)  # a terminal far away
        assert process.wait(timeout=20) == 0
        assert bytes(got).replace(b"[rank 0] ", b"") == b"x" * 4_000_000 + b"\nwritten\n"


def read_slowly(descriptor: int, size: int) -> bytes:
    got = bytearray()
    while data := os.read(descriptor, size):
        got += data
        time.sleep(0.001)  # a terminal far away
    return bytes(got)


def test_one_reader_that_leaves_takes_nothing_from_the_other(script: Callable[[str], Path]) -> None:
    path = script("sys.stderr.write(('e' * 99 + '\\n') * 2000)\nwhile True: print('o' * 99)\n")
    read, write = os.pipe()
    command = [sys.executable, "-m", "smdp", "run", str(path)]
    with subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE) as process:
        os.close(write)
        os.read(read, 1)
        os.close(read)
        assert process.stderr is not None
        text = read_slowly(process.stderr.fileno(), 4096)
        assert process.wait(timeout=20) == 128 + signal.SIGPIPE
    assert text == (b"[rank 0] " + b"e" * 99 + b"\n") * 2000


def test_last_words_after_a_signal_are_read(
    script: Callable[[str], Path], default_signals: Callable[[], None]
) -> None:
    path = script(
        "def leave(*_):\n"
        "    for i in range(5000): print('last', i, 'x' * 90)\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, leave)\n"
        "print('ready')\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-m", "smdp", "run", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, preexec_fn=default_signals) as process:
        assert process.stdout is not None
        assert os.read(process.stdout.fileno(), 100) == b"[rank 0] ready\n"
        process.send_signal(signal.SIGTERM)
        lines = read_slowly(process.stdout.fileno(), 4096).splitlines()
        assert process.wait(timeout=20) == 0
    assert [line.split()[3] for line in lines] == [b"%d" % i for i in range(5000)]


def test_what_a_rank_leaves_behind_does_not_hold_the_job_by_writing(script: Callable[[str], Path]) -> None:
    path = script("import subprocess\nsubprocess.Popen(['timeout', '40', 'yes'])\n")
    command = [sys.executable, "-m", "smdp", "run", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        begin = time.monotonic()
        read_slowly(process.stdout.fileno(), 4096)
        assert process.wait(timeout=30) == 0
        assert time.monotonic() - begin < 20
