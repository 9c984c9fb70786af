"""`smdp.run()`: a function on two ranks, as a notebook cell calls it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import smdp

pytest.importorskip("cloudpickle")

# Functions stand in tests, so that they travel by value, as those of a cell do.


def test_results_come_back_by_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def total(step: int, *, offset: int) -> tuple[int, int]:
        import numpy

        group = smdp.init()
        value = numpy.array([group.rank * step + offset])
        group.all_reduce(value)
        print("rank", group.rank, "of", group.size)
        return group.rank, int(value[0])

    assert smdp.run(total, ranks=2, args=(10,), kwargs={"offset": 1}, timeout=60) == [(0, 12), (1, 12)]
    assert sorted(capsys.readouterr().out.splitlines()) == ["[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"]


def test_classes_of_the_caller_stay_the_same() -> None:
    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    found = smdp.run(lambda point: Point(point.x + 1), args=(Point(1),), timeout=60)
    assert all(type(one) is Point and one.x == 2 for one in found)


def test_error_of_the_failing_rank_comes_back() -> None:
    def fail() -> None:
        import numpy

        group = smdp.init()
        if group.rank == 1:
            raise KeyError("no such layer")
        group.all_reduce(numpy.zeros(3))  # ends by PeerLostError, because of rank 1

    with pytest.raises(KeyError, match="no such layer") as caught:
        smdp.run(fail, timeout=60)
    cause = str(caught.value.__cause__)
    assert "rank 1 of 2" in cause
    assert "in fail" in cause


def test_killed_rank_is_named() -> None:
    def fail() -> None:
        import numpy

        group = smdp.init()
        if group.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        group.all_reduce(numpy.zeros(3))

    with pytest.raises(
        smdp.SmdpError, match=r"rank 1 of 2 ended before .*fail\(\) returned: killed by SIGKILL"
    ):
        smdp.run(fail, timeout=60)


def test_exit_is_an_error() -> None:
    with pytest.raises(smdp.SmdpError, match=r"rank \d of 2: .* raised SystemExit: 3"):
        smdp.run(lambda: sys.exit(3), timeout=60)
    with pytest.raises(smdp.SmdpError, match=r"rank \d of 2 ended before .* returned: exit code 0"):
        smdp.run(lambda: os._exit(0), timeout=60)


def test_exception_that_does_not_travel_is_told() -> None:
    def fail() -> None:
        class Odd(Exception):
            def __init__(self, one: int, two: int) -> None:
                super().__init__(f"{one} and {two}")

        raise Odd(1, 2)

    with pytest.raises(smdp.SmdpError, match=r"raised .*Odd: 1 and 2"):
        smdp.run(fail, timeout=60)


def test_what_cannot_be_pickled_is_refused() -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match=r"cannot be sent to the ranks: cannot pickle '_thread\.lock'"):
        smdp.run(lambda: lock)
    with pytest.raises(TypeError, match="the result is a lock, which cannot be pickled"):
        smdp.run(threading.Lock, timeout=60)


def test_function_of_a_script_needs_cloudpickle(monkeypatch: pytest.MonkeyPatch) -> None:
    def train() -> None:
        pass

    train.__module__ = "__main__"
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(ModuleNotFoundError, match="pip install cloudpickle"):
        smdp.run(train)
    assert smdp.run(os.path.basename, args=("/some/file",), timeout=60) == ["file", "file"]


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"ranks": 0}, ValueError, "ranks = 0 is not valid"),
        ({"ranks": 1.5}, TypeError, "ranks = 1.5"),
        ({"timeout": 0}, ValueError, "timeout = 0"),
        ({"function": 3}, TypeError, "function is a int"),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        smdp.run(**{"function": len, **options})


def test_timeout_ends_the_ranks(tmp_path: Path) -> None:
    def wait(folder: Path) -> None:
        (folder / os.environ["SMDP_RANK"]).write_text(str(os.getpid()))
        time.sleep(100)

    begin = time.monotonic()
    with pytest.raises(smdp.TimeoutError, match=r"not returned on every rank within timeout = 3 s"):
        smdp.run(wait, args=(tmp_path,), timeout=3)
    assert time.monotonic() - begin < 30
    assert [alive(int((tmp_path / rank).read_text())) for rank in "01"] == [False, False]


SCRIPT = """
import os, sys, time, pathlib, smdp
def wait(folder):
    (pathlib.Path(folder) / os.environ["SMDP_RANK"]).write_text(str(os.getpid()))
    time.sleep(100)
try:
    smdp.run(wait, args=(sys.argv[1],))
except KeyboardInterrupt:
    print("interrupted", flush=True)
    time.sleep(100)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_caller_ends_the_ranks(number: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, SIGINT is ignored, and the script would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    try:
        pids = [wait_for_pid(tmp_path / rank) for rank in "01"]
        process.send_signal(number)
        if number == signal.SIGINT:
            assert process.stdout is not None
            assert process.stdout.readline() == "interrupted\n"
        end = time.monotonic() + 30
        while any(map(alive, pids)):
            assert time.monotonic() < end, "a rank has outlived its caller"
            time.sleep(0.05)
    finally:
        process.kill()
        process.communicate()


def wait_for_pid(path: Path) -> int:
    end = time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return int(path.read_text())


def alive(pid: int) -> bool:
    """Returns whether a process runs; one that has ended and is not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
