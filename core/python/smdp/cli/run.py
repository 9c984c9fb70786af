"""`smdp run`: start ranks on this machine and look after them.

All is done by one thread, so that forking is safe: a loop over the ranks' pipes and a wake-up descriptor
for signals. Every rank leads a process group of its own; what stops a rank stops its children. If this
process is killed, the kernel kills the ranks (PR_SET_PDEATHSIG) and a small guard process their children.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import random
import secrets
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

from smdp import config
from smdp._errors import ConfigError
from smdp.cli import system
from smdp.cli.guard import FORWARDED, Guard, kill_group
from smdp.cli.output import Stream, sinks

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1
_FINE, _OBEYED, _ASKED, _FAILED = range(4)  # how a rank has ended, from good to bad
_DRAIN_S = 1.0  # how long output is awaited from children that outlive their rank


def run(
    command: Sequence[str],
    nproc: int,
    *,
    module: bool = False,
    master_port: int | None = None,
    stop_timeout_s: float = 5.0,
    grace_s: float = 120.0,
    compat: bool = False,
    is_dry: bool = False,
) -> int:
    """Start nproc ranks of a command and wait for them.

    Args:
        command: A Python file, a module or a program, and its arguments.
        nproc: Number of ranks.
        module: The first word of command is a module.
        master_port: MASTER_PORT of the ranks; smdp's is the next one.
        stop_timeout_s: Seconds between SIGTERM and SIGKILL once a rank has failed.
        grace_s: Seconds that ranks have for saving and leaving, once this process got SIGTERM or one of them
            asked for a restart.
        compat: Ranks run with SMDP_COMPAT=1.
        is_dry: Print what every rank would see, and start none.

    Returns:
        0, or the code of the rank that failed first, 128 + signal if one killed it; if none failed and one
        asked for a restart, SMDP_PREEMPTED_EXIT_CODE.
    """
    try:
        argv = command_line(command, module=module)
        if nproc < 1:
            raise config.invalid("-n", nproc, "an integer >= 1")
        environ = {**os.environ, "SMDP_COMPAT": "1"} if compat else os.environ
        environments = rank_environments(environ, nproc, master_port=master_port)
        restart_code = config.read_preempted_exit_code(environ)
    except (ConfigError, OSError) as error:
        _say(str(error))
        return 2
    except CommandError as error:
        _say(str(error))
        return 127
    if is_dry:
        from smdp.cli import dry_run

        text, is_good = dry_run.describe(argv, environments)
        print(text)
        return 0 if is_good else 2
    launcher = Launcher(
        argv, environments, stop_timeout_s=stop_timeout_s, grace_s=grace_s, restart_code=restart_code
    )
    return launcher.run()


def command_line(command: Sequence[str], *, module: bool = False) -> list[str]:
    """Make the command that a rank executes.

    Raises:
        CommandError: There is no such thing.
    """
    command = [word for index, word in enumerate(command) if index or word != "--"]
    if not command:
        raise CommandError("nothing to run; give a Python file, -m and a module, or a program")
    first = command[0]
    if module:
        return [sys.executable, "-u", "-m", *command]
    if first.endswith((".py", ".pyc", ".pyz")):
        if not os.path.isfile(first):
            raise CommandError(f"no such file: {first}")
        return [sys.executable, "-u", *command]
    if shutil.which(first) is None:
        raise CommandError(f"{first!r} is neither a Python file nor a program on PATH")
    return list(command)


def rank_environments(
    environ: Mapping[str, str], nproc: int, *, master_port: int | None = None
) -> list[dict[str, str]]:
    """Make the environment of every rank: SMDP_* and torch's env:// variables, a fresh secret.

    Raises:
        ConfigError: master_port is not free.
    """
    port = free_ports() if master_port is None else master_port
    if master_port is not None and not (_is_free(port) and _is_free(port + 1)):
        raise config.invalid("--master-port", port, "a port that is free, and so is the next one")
    common = dict(environ)
    # What another launcher around us says is about its processes, not about ours.
    for name in ("GROUP_RANK", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RUN_ID"):
        common.pop(name, None)
    common.update(
        WORLD_SIZE=str(nproc),
        LOCAL_WORLD_SIZE=str(nproc),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        SMDP_WORLD_SIZE=str(nproc),
        SMDP_LOCAL_WORLD_SIZE=str(nproc),
        SMDP_MASTER_ADDR="127.0.0.1",
        SMDP_MASTER_PORT=str(port + 1),
    )
    if not (config.read(common, "SMDP_SECRET") or config.read(common, "SMDP_SECRET_FILE")):
        common["SMDP_SECRET"] = secrets.token_hex(32)
    common.setdefault("PYTHONUNBUFFERED", "1")
    if not common.get("OMP_NUM_THREADS"):
        common["OMP_NUM_THREADS"] = str(max(1, int(system.available_cores()) // nproc))
        if (common.get("SMDP_LOG_LEVEL") or "").lower() == "debug":
            _say(f"OMP_NUM_THREADS={common['OMP_NUM_THREADS']}: cores / ranks (torchrun sets 1)")
    result = []
    for rank in range(nproc):
        own = {"RANK": rank, "LOCAL_RANK": rank, "SMDP_RANK": rank, "SMDP_LOCAL_RANK": rank}
        result.append({**common, **{name: str(value) for name, value in own.items()}})
    return result


def free_ports() -> int:
    """Find a port that is free together with the next one.

    It lies below the range from which the kernel serves outgoing connections, so that none takes it before
    rank 0 does.
    """
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low = int(file.read().split()[0])
    except (OSError, ValueError, IndexError):
        low = 32768
    first, last = (15000, low - 2) if low > 17000 else (20000, 65000)
    draw = random.SystemRandom()
    for _ in range(1000):
        port = draw.randint(first, last)
        if _is_free(port) and _is_free(port + 1):
            return port
    raise OSError(errno.EADDRINUSE, f"no two free ports between {first} and {last}")


def _is_free(port: int) -> bool:
    for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((address, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
    return True


class CommandError(ValueError):
    """The command is no Python file, no module and no program."""


@dataclass
class _Rank:
    """A process that was started."""

    number: int
    process: subprocess.Popen[bytes]
    code: int | None = None  # as a shell gives it


class Launcher:
    """Start one process per environment, merge their output, end together.

    Use from the main thread of a process without other threads. Not reusable.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        stop_timeout_s: float = 5.0,
        grace_s: float = 120.0,
        restart_code: int = config.DEFAULT_PREEMPTED_EXIT_CODE,
        has_prefixes: bool = True,
    ) -> None:
        self._argv = list(argv)
        self._grace_s = grace_s
        self._restart_code = restart_code
        self._has_prefixes = has_prefixes
        self._environments = environments
        self._stop_timeout_s = stop_timeout_s
        self._ranks: list[_Rank] = []
        self._streams: dict[int, tuple[IO[bytes], Stream]] = {}
        self._selector = selectors.DefaultSelector()
        self._exit_code: int | None = None
        self._has_grace = False
        self._passed_on: set[int] = set()
        self._is_stopping = False
        self._kill_at: float | None = None
        self._lost_reader = False

    def run(self) -> int:
        """Run to the end; give the exit code."""
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {
            number: signal.signal(number, lambda *_: None)
            for number in (*FORWARDED, signal.SIGCHLD)
            if signal.getsignal(number) is not signal.SIG_IGN
            or number == signal.SIGCHLD  # nohup ignores SIGHUP
        }
        old_wakeup = signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self._selector.register(wakeup_read, selectors.EVENT_READ)
        guard = Guard()
        try:
            self._start(guard)
            self._loop(wakeup_read)
        finally:
            for rank in self._ranks:  # only after an error of our own is one still alive
                if rank.process.poll() is None:
                    kill_group(rank.process.pid, signal.SIGKILL)
                    rank.process.wait()
            guard.release()
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(wakeup_read)
            os.close(wakeup_write)
        return self._exit_code or 0

    def _start(self, guard: Guard) -> None:
        out, err = sinks()
        width = len(str(len(self._environments) - 1))
        # A rank is not in the terminal's foreground group and could not read from it.
        stdin_of_first = subprocess.DEVNULL if _is_terminal(0) else None
        prepare = _child_setup()
        for number, environ in enumerate(self._environments):
            try:
                process = subprocess.Popen(
                    self._argv,
                    env=environ,
                    stdin=stdin_of_first if number == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    preexec_fn=prepare,
                )
            except (OSError, subprocess.SubprocessError) as error:
                _say(f"cannot start rank {number}: {error}")
                self._exit_code = 126
                self._stop()
                break
            guard.watch(process.pid)
            self._ranks.append(_Rank(number, process))
            prefix = f"[rank {number:>{width}}] " if self._has_prefixes else ""
            for pipe, sink in ((process.stdout, out), (process.stderr, err)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe, selectors.EVENT_READ)
                self._streams[pipe.fileno()] = (pipe, Stream(prefix, sink))

    def _loop(self, wakeup_fd: int) -> None:
        drain_until: float | None = None
        while True:
            self._reap()
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                if not self._is_stopping:
                    self._is_stopping = True
                    running = sum(rank.code is None for rank in self._ranks)
                    _say(f"{running} ranks still run after a grace of {self._grace_s:g} s; killing them")
                for rank in self._ranks:
                    if self._is_group_ours(rank):
                        kill_group(rank.process.pid, signal.SIGKILL)
                self._kill_at = None
            is_over = all(rank.code is not None for rank in self._ranks) and self._kill_at is None
            if is_over:
                drain_until = now + _DRAIN_S if drain_until is None else drain_until
                if not self._streams or now >= drain_until:
                    break
            for key, _ in self._selector.select(timeout=0.1 if is_over or self._kill_at else 0.2):
                if key.fd == wakeup_fd:
                    self._handle_signals(os.read(wakeup_fd, 4096))
                else:
                    self._read(key.fd)
            now = time.monotonic()
            for _, stream in list(self._streams.values()):
                self._guarded(partial(stream.flush_idle, now))
        for fd in list(self._streams):
            self._close(fd)

    def _handle_signals(self, numbers: bytes) -> None:
        for number in numbers:
            if number not in FORWARDED:
                continue
            if number in _STOPPING and number in self._passed_on:
                self._stop()  # asked twice
                continue
            self._passed_on.add(number)
            for rank in self._ranks:
                if rank.code is None:
                    self._pass_on(rank, number)
            if number == signal.SIGTERM:
                self._grant_grace()

    def _pass_on(self, rank: _Rank, number: int) -> None:
        # Python hears SIGTERM itself. Its children, such as workers that load data, are left in peace: a rank
        # that saves before it ends would fail of their death.
        if number == signal.SIGTERM and self._argv[0] == sys.executable:
            rank.process.send_signal(number)
        else:
            kill_group(rank.process.pid, number)

    def _grant_grace(self) -> None:
        """Let ranks save and leave, and kill what does not end in time."""
        if not self._has_grace and not self._is_stopping:
            self._has_grace = True
            self._kill_at = time.monotonic() + self._grace_s

    def _reap(self) -> None:
        failed = []
        for rank in self._ranks:
            if rank.code is None and (status := rank.process.poll()) is not None:
                rank.code = 128 - status if status < 0 else status
                if rank.code:
                    failed.append(rank)
        if self._kill_at is not None and not any(self._is_group_ours(rank) for rank in self._ranks):
            self._kill_at = None
        if failed:
            self._judge(failed)
        # What ranks have left behind need not be waited for.
        if self._has_grace and all(rank.code is not None for rank in self._ranks):
            self._stop()

    def _judge(self, failed: Sequence[_Rank]) -> None:
        """Set the exit code, and stop all or let them leave."""
        worst = max(failed, key=lambda rank: self._grade(rank.code))
        before, now = self._grade(self._exit_code), self._grade(worst.code)
        if self._exit_code is None or (now > before and not self._is_stopping):
            self._exit_code = worst.code
        if self._is_stopping:
            return
        running = sum(other.code is None for other in self._ranks)
        what = f"rank {worst.number} (pid {worst.process.pid})"
        if now == _FAILED:
            rest = f"; stopping the {running} still running" if running else ""
            _say(f"{what} failed first: {_describe(worst.code)}{rest}")
            self._stop()
        elif now == _ASKED and before < _ASKED:
            rest = f"; the {running} still running have {self._grace_s:g} s to leave" if running else ""
            _say(f"{what} asked for a restart: {_describe(worst.code)}{rest}")
            self._grant_grace()

    def _grade(self, code: int | None) -> int:
        """Say how bad it is. Who obeyed a signal is no reason to stop others, who may still save."""
        if not code:
            return _FINE
        if code == self._restart_code:
            return _ASKED
        return _OBEYED if code - 128 in self._passed_on else _FAILED

    def _stop(self) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        self._kill_at = time.monotonic() + self._stop_timeout_s
        for rank in self._ranks:
            if self._is_group_ours(rank):
                kill_group(rank.process.pid, signal.SIGTERM)

    def _is_group_ours(self, rank: _Rank) -> bool:
        """True while the rank runs, or failed and left children; who ended well may leave some on purpose."""
        return rank.code is None or (rank.code != 0 and kill_group(rank.process.pid, 0))

    def _read(self, fd: int) -> None:
        _, stream = self._streams[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._guarded(partial(stream.feed, data, time.monotonic()))
        else:
            self._close(fd)

    def _close(self, fd: int) -> None:
        pipe, stream = self._streams.pop(fd)
        self._selector.unregister(pipe)
        self._guarded(stream.close)
        pipe.close()

    def _guarded(self, write: Callable[[], None]) -> None:
        """Write; if nobody reads our output any more, end the job as a pipe's writer ends."""
        if self._lost_reader:
            return
        try:
            write()
        except OSError:
            self._lost_reader = True
            if self._exit_code is None:
                self._exit_code = 128 + signal.SIGPIPE
            self._stop()


def _child_setup() -> Callable[[], None]:
    """Make the function that runs between fork and exec; what it needs is looked up before."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def setup() -> None:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # died in between
            os._exit(1)

    return setup


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _describe(code: int | None) -> str:
    if code is not None and code > 128:
        try:
            return f"killed by {signal.Signals(code - 128).name}"
        except ValueError:
            pass
    return f"exit code {code}"


def _say(message: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"smdp: {message}\n".encode(errors="replace"))
