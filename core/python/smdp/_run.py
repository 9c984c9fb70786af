"""`smdp.run()`: calls a function on several ranks of this machine and returns what each rank returned.

The function travels by value, through cloudpickle. A fork would be cheaper, but a notebook's kernel has
threads, and OpenMP, CUDA and smdp's own groups do not survive a fork. The launcher of `smdp run` starts the
ranks. It runs in a process of its own, because it may have no other threads and reaps every child it finds.
"""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import os
import pickle
import selectors
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from smdp import _pickling
from smdp._arguments import integer, seconds
from smdp._errors import PeerLostError, SmdpError, TimeoutError
from smdp.cli.launcher import Launcher
from smdp.cli.rank_environments import rank_environments
from smdp.cli.rank_process import describe_exit
from smdp.environments.base import MOST_RANKS

T = TypeVar("T")

_STOP_S = 5.0  # between SIGTERM and SIGKILL for ranks that have to end
_PR_SET_PDEATHSIG = 1
_LAUNCHER = "import sys; from smdp import _run; _run.launch(*sys.argv[1:])"
_RANK = "import sys; from smdp import _run; _run.call(sys.argv[1])"


class RankTraceback(Exception):
    """The traceback of a rank as text: the `__cause__` of the error that run() raises."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


@dataclass
class _Report:
    """How a rank's call ended.

    Attributes:
        time: When, by time.monotonic().
        result: What the function returned, pickled; None if it failed.
        error: The exception, pickled; None if it cannot be pickled.
        told: The exception in one line.
        trace: Its traceback.
        is_consequence: The exception says that another rank is lost.
    """

    time: float
    result: bytes | None = None
    error: bytes | None = None
    told: str = ""
    trace: str = ""
    is_consequence: bool = False


def run(
    function: Callable[..., T],
    *,
    ranks: int = 2,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    timeout: float | None = None,
) -> list[T]:
    """Calls a function on several ranks of this machine and returns what each rank returned.

    Works in a notebook cell, in a script and in the interactive interpreter. Each rank is a process in which
    smdp.init() and ``torch.distributed.init_process_group("smdp")`` find the other ranks. The output of the
    ranks appears here, each line with its rank in front. Interrupting the cell ends the ranks.

        def total(step):
            group = smdp.init()
            value = np.array([group.rank * step])
            group.all_reduce(value)
            return int(value[0])

        smdp.run(total, ranks=2, args=(10,))  # [10, 10]

    Args:
        function: What every rank calls. A function that a notebook or script defines needs cloudpickle, and
            the global names that it uses travel with it. A function imported from a module needs neither.
        ranks: Number of processes.
        args: Positional arguments, the same for every rank.
        kwargs: Keyword arguments, the same for every rank.
        timeout: Seconds after which the ranks are ended. Default: the function may take as long as it needs.

    Returns:
        The results, by rank.

    Raises:
        Exception: The error of the rank that failed first. Its ``__cause__`` shows the rank's traceback.
        SmdpError: A rank ended without a result: a signal killed it, it called sys.exit(), or its error
            cannot be pickled.
        TimeoutError: The timeout passed.
        TypeError: The function, its arguments or a result cannot be pickled.
        ModuleNotFoundError: The function needs cloudpickle, which is not installed.
    """
    if not callable(function):
        raise TypeError(f"[smdp] function is a {type(function).__name__}; allowed: something to call")
    count = integer("ranks", ranks)
    if not 1 <= count <= MOST_RANKS:
        raise ValueError(f"[smdp] ranks = {count} is not valid; allowed: 1 to {MOST_RANKS}")
    limit_s = None if timeout is None else seconds("timeout", timeout)
    name = f"{getattr(function, '__qualname__', type(function).__name__)}()"
    call = _pickled((function, tuple(args), dict(kwargs or {})), name)
    with tempfile.TemporaryDirectory(prefix="smdp-run-") as folder:
        place = Path(folder)
        (place / "call").write_bytes(pickle.dumps((sys.path, call)))
        (place / "environments").write_bytes(pickle.dumps(rank_environments(os.environ, count)))
        code = _launch_and_show(place, name, limit_s)
        return _results(place, count, name, code)


def _pickled(call: tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]], name: str) -> bytes:
    module = getattr(call[0], "__module__", "__main__")
    try:
        try:
            import cloudpickle
        except ModuleNotFoundError:
            if module == "__main__":  # which would be another module in the ranks
                raise ModuleNotFoundError(
                    f"[smdp] {name} is defined in this notebook or script, and sending it to the ranks needs"
                    " cloudpickle: pip install cloudpickle, or import the function from a module."
                ) from None
            return pickle.dumps(call)
        return bytes(cloudpickle.dumps(call))
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise TypeError(
            f"[smdp] {name} and its arguments cannot be sent to the ranks: {error}. Make such objects"
            " inside the function."
        ) from error


def _launch_and_show(place: Path, name: str, limit_s: float | None) -> int:
    """Starts the launcher, shows what it writes until it ends, and returns its exit code."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", _LAUNCHER, str(os.getpid()), str(place)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # Jupyter interrupts a process group; the launcher hears of it from here
    )
    end = None if limit_s is None else time.monotonic() + limit_s
    try:
        with selectors.DefaultSelector() as selector:
            for pipe, stream in ((process.stdout, "stdout"), (process.stderr, "stderr")):
                assert pipe is not None
                decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
                selector.register(pipe, selectors.EVENT_READ, (stream, decoder))
            while selector.get_map():
                _show(selector, 0.2)
                if end is not None and time.monotonic() > end:
                    raise TimeoutError(
                        f"[smdp] {name} has not returned on every rank within timeout = {limit_s:g} s;"
                        " the ranks were ended."
                    )
        return process.wait(_STOP_S)  # it has closed its pipes
    finally:
        _end(process)


def _show(selector: selectors.BaseSelector, wait_s: float) -> None:
    """Passes on what the launcher has written; sys.stdout and sys.stderr are those of the notebook."""
    for key, _ in selector.select(wait_s):
        stream, decoder = key.data
        data = os.read(key.fd, 1 << 16)
        if not data:
            selector.unregister(key.fileobj)
        getattr(sys, stream).write(decoder.decode(data, final=not data))
        getattr(sys, stream).flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the launcher and with it the ranks."""
    try:
        if process.poll() is None:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_S + 5)
    finally:  # also if the user interrupts for the second time
        if process.poll() is None:
            process.kill()  # the launcher's guard kills the ranks
            process.wait(_STOP_S)
        for pipe in (process.stdout, process.stderr):
            assert pipe is not None
            pipe.close()


def _results(place: Path, ranks: int, name: str, code: int) -> list[Any]:
    """Returns what the ranks returned, or raises the error of the rank that failed first."""
    reports = {rank: _read(place / f"report-{rank}") for rank in range(ranks)}
    ends = _read(place / "ends")
    if ends is None:
        raise SmdpError(f"[smdp] the launcher of {name} ended early, with exit code {code}.")
    codes, out_of_memory = ends
    # A rank that lost a peer failed because of the rank that was lost, and comes last.
    failures = [(one.is_consequence, one.time, at) for at, one in reports.items() if one and not one.result]
    failures += [(False, time, rank) for rank, (time, _) in codes.items() if reports[rank] is None]
    if failures:
        rank = min(failures)[2]
        report, who = reports[rank], f"rank {rank} of {ranks}"
        if report is not None:
            _raise(report, who, name)
        ended = describe_exit(codes[rank][1])
        raise SmdpError(f"[smdp] {who} ended before {name} returned: {ended}. {out_of_memory}".strip())
    missing = [rank for rank, report in reports.items() if report is None]
    if missing:
        raise SmdpError(f"[smdp] ranks {missing} of {ranks} were stopped before {name} returned.")
    return [pickle.loads(report.result) for report in reports.values() if report and report.result]


def _raise(report: _Report, who: str, name: str) -> NoReturn:
    trace = RankTraceback(f"{who}:\n{report.trace}")
    error: Any = None
    # Only the rank may have the class, or its constructor wants other arguments.
    with contextlib.suppress(Exception):
        error = pickle.loads(report.error or b"")
    if not isinstance(error, Exception):
        error = SmdpError(f"[smdp] {who}: {name} raised {report.told}")
    raise error from trace


def _read(path: Path) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else None


def _write(path: Path, content: Any) -> None:
    part = path.with_suffix(".part")  # a process may be killed while it writes
    part.write_bytes(pickle.dumps(content))
    part.rename(path)


class _Launcher(Launcher):
    """Notes when and how ranks end, unless it has stopped them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.codes: dict[int, tuple[float, int]] = {}

    def ended(self, rank: int, code: int) -> None:
        if not self.is_stopping:
            self.codes[rank] = time.monotonic(), code


def launch(parent: str, folder: str) -> None:
    """Starts the ranks and waits for them; the main function of the launcher's process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended in between
        return
    place = Path(folder)
    argv = [sys.executable, "-u", "-c", _RANK, folder]
    launcher = _Launcher(argv, _read(place / "environments"), stop_timeout_s=_STOP_S, grace_s=_STOP_S)
    code = launcher.run()
    _write(place / "ends", (launcher.codes, launcher.out_of_memory))
    sys.exit(code)


def call(folder: str) -> None:
    """Calls the function and reports how that ended; the main function of a rank's process."""
    place = Path(folder)
    report = place / f"report-{os.environ['SMDP_RANK']}"
    try:
        sys.path[:], pickled = _read(place / "call")
        function, args, kwargs = pickle.loads(pickled)
        result = function(*args, **kwargs)
        try:
            pickled = _pickling.dumps(result)
        except Exception as error:
            kind = type(result).__name__
            raise TypeError(
                f"[smdp] the result is a {kind}, which cannot be pickled: {error}. Return numbers, arrays or"
                " other plain data."
            ) from error
        _write(report, _Report(time.monotonic(), result=pickled))
    except BaseException as error:
        at = time.monotonic()
        told = "".join(traceback.format_exception_only(type(error), error)).strip()
        inner = error.__traceback__.tb_next if error.__traceback__ else None  # without this function
        trace = "".join(traceback.format_exception(type(error), error, inner))
        pickled = None
        with contextlib.suppress(Exception):
            pickled = _pickling.dumps(error)
        _write(report, _Report(at, None, pickled, told, trace, isinstance(error, PeerLostError)))
        sys.excepthook = lambda *_: None  # run() shows it; peers are told why this rank ends
        raise
