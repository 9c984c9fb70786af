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
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO

from smdp import _core, config
from smdp._errors import ConfigError
from smdp._misspelt import untold
from smdp.cli.binding import BindTo, cpus_of_ranks
from smdp.cli.guard import FORWARDED, Guard, kill_group
from smdp.cli.out_of_memory import OutOfMemory
from smdp.cli.output import Sink, Stream, sinks
from smdp.cli.rank_environments import rank_environments

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_FINE, _OBEYED, _ASKED, _FAILED = range(4)  # how a rank has ended, from good to bad
# What a process lacks that cannot be started, and the call that finds it.
_SHORTAGES = {
    errno.EMFILE: "pipe2",
    errno.ENFILE: "pipe2",
    errno.EAGAIN: "fork",
    errno.ENOMEM: "fork",
}
_OWN_FILES = 16  # that smdp run opens at most, besides the pipes of ranks
# As Python has it of the process itself, and as a shell has it of its last command.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)
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
    bind_to: BindTo = BindTo.NONE,
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
        bind_to: Ranks have CPUs of their own.
        is_dry: Print what every rank would see, and start none.

    Returns:
        0, or the code of the rank that failed first, 128 + signal if one killed it; if none failed and one
        asked for a restart, SMDP_PREEMPTED_EXIT_CODE.
    """
    try:
        argv = command_line(command, module=module)
        environ = dict(os.environ)
        if compat:
            environ["SMDP_COMPAT"] = "1"
        for text in untold(environ):
            _say(text)
        environments = rank_environments(environ, nproc, master_port=master_port)
        restart_code = config.read_preempted_exit_code(environ)
        cpus = cpus_of_ranks(bind_to, nproc)
    except (ConfigError, OSError) as error:
        _say(str(error))
        return 2
    except CommandError as error:
        _say(str(error))
        return error.code
    if is_dry:
        from smdp.cli import dry_run

        text, is_good = dry_run.describe(argv, environments, cpus)
        print(text)
        return 0 if is_good else 2
    launcher = Launcher(
        argv,
        environments,
        cpus=cpus,
        stop_timeout_s=stop_timeout_s,
        grace_s=grace_s,
        restart_code=restart_code,
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
        if os.path.isdir(first):
            raise CommandError(f"{first!r} is a folder; give a Python file, -m and a module, or a program")
        if os.path.isfile(first) and os.sep in first:
            raise CommandError(
                f"{first!r} is not executable: chmod +x, or name what runs it, e.g. smdp run -- bash {first}",
                126,
            )
        raise CommandError(f"{first!r} is neither a Python file nor a program on PATH")
    return list(command)


class CommandError(ValueError):
    """The command is no Python file, no module and no program.

    Args:
        message: What it is.
        code: The exit code, as a shell gives it: 127, or 126 where what is there cannot be executed.
    """

    def __init__(self, message: str, code: int = 127) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class _Rank:
    """A process that was started."""

    number: int
    process: subprocess.Popen[bytes]
    code: int | None = None  # as a shell gives it


@dataclass
class _Output:
    """What one rank writes to stdout or to stderr."""

    rank: int
    is_stderr: bool
    pipe: IO[bytes]
    stream: Stream
    left: int = 1 << 20  # bytes that are read once all ranks have ended


class Launcher:
    """Start one process per environment, merge their output, end together.

    Use from the main thread of a process without other threads. Not reusable. What heard(), ended(), tick()
    and is_done() do is for subclasses to add to.

    Args:
        argv: What every rank executes.
        environments: One per rank.
        cpus: On which each rank may run. Default: where this process may.
        stop_timeout_s: Seconds between SIGTERM and SIGKILL once a rank has failed.
        grace_s: Seconds that ranks have for saving and leaving.
        restart_code: By which a rank asks for a restart.
        has_prefixes: Whether lines of output begin with their rank.
        first_rank: Number of the first rank.
        cwd: Where ranks start. Default: here.

    Attributes:
        is_stopping: Ranks were sent SIGTERM of the launcher's own accord, or killed after the grace.
        out_of_memory: What the kernel has ended because memory ran out, in a sentence; empty if nothing.
    """

    def __init__(
        self,
        argv: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        *,
        cpus: Sequence[set[int]] | None = None,
        stop_timeout_s: float = 5.0,
        grace_s: float = 120.0,
        restart_code: int = config.DEFAULT_PREEMPTED_EXIT_CODE,
        has_prefixes: bool = True,
        first_rank: int = 0,
        cwd: str | None = None,
    ) -> None:
        self._argv = list(argv)
        self._is_python = self._argv[0] == sys.executable
        self._first_rank = first_rank
        self._cwd = cwd
        self._grace_s = grace_s
        self._restart_code = restart_code
        self._has_prefixes = has_prefixes
        self._environments = environments
        self._cpus: Sequence[set[int] | None] = cpus or [None] * len(environments)
        self._stop_timeout_s = stop_timeout_s
        self._guard: Guard | None = None
        self._ranks: list[_Rank] = []
        self._outputs: dict[int, _Output] = {}
        self._sinks = sinks()
        self._selector = selectors.DefaultSelector()
        self._out_of_memory = OutOfMemory()
        self._exit_code: int | None = None
        self._left_first: _Rank | None = None  # with exit code 0, while others still ran
        self._has_grace = False
        self._passed_on: set[int] = set()
        self.is_stopping = False
        self.out_of_memory = ""
        self._kill_at: float | None = None
        self._is_hurried = False

    def run(self) -> int:
        """Run to the end; give the exit code."""
        # What a rank leaves behind becomes a child of this process, which sees its end.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _core.raise_open_files_limit()
        wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {
            number: signal.signal(number, lambda *_: None)
            for number in (*FORWARDED, signal.SIGTSTP, signal.SIGCONT, signal.SIGCHLD)
            if signal.getsignal(number) is not signal.SIG_IGN
            or number == signal.SIGCHLD  # nohup ignores SIGHUP
        }
        old_wakeup = signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
        self._selector.register(wakeup_read, selectors.EVENT_READ)
        try:
            self._start()
            self._loop(wakeup_read)
        finally:
            for rank in self._ranks:  # only after an error of our own is one still alive
                if rank.process.poll() is None:
                    kill_group(rank.process.pid, signal.SIGKILL)
                    rank.process.wait()
            if self._guard is not None:
                self._guard.release()
            signal.set_wakeup_fd(old_wakeup)
            for number, handler in before.items():
                signal.signal(number, handler)
            self._selector.close()
            os.close(wakeup_read)
            os.close(wakeup_write)
        return self._exit_code or 0

    def _start(self) -> None:
        out, err = self._sinks
        width = len(str(self._first_rank + len(self._environments) - 1))
        # A rank is not in the terminal's foreground group and could not read from it.
        stdin_of_first = subprocess.DEVNULL if _is_terminal(0) else None
        for number, environ in enumerate(self._environments, self._first_rank):
            try:
                if self._guard is None:
                    self._guard = Guard()
                process = subprocess.Popen(
                    self._argv,
                    env=environ,
                    cwd=self._cwd,
                    stdin=stdin_of_first if number == 0 else subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    bufsize=0,
                    preexec_fn=_child_setup(self._cpus[number - self._first_rank]),
                )
            except (OSError, subprocess.SubprocessError) as error:
                self._say(f"cannot start rank {number}: {_reason(error)}")
                self._exit_code = 126
                self.ended(number, self._exit_code)
                self.stop()
                break
            self._guard.watch(process.pid)
            self._ranks.append(_Rank(number, process))
            prefix = f"[rank {number:>{width}}] " if self._has_prefixes else ""
            for pipe, sink in ((process.stdout, out), (process.stderr, err)):
                assert pipe is not None
                os.set_blocking(pipe.fileno(), False)
                self._outputs[pipe.fileno()] = _Output(number, sink is err, pipe, Stream(prefix, sink))

    def _loop(self, wakeup_fd: int) -> None:
        over_since: float | None = None
        while True:
            self._reap()
            self.tick()
            now = time.monotonic()
            if self._kill_at is not None and now >= self._kill_at:
                if not self.is_stopping:
                    self.is_stopping = True
                    running = sum(map(self._may_save, self._ranks))
                    self._say(
                        f"the {running} still running have not left in {self._grace_s:g} s; killing them"
                    )
                self._signal_all(signal.SIGKILL)
                self._kill_at = None
            is_over = all(rank.code is not None for rank in self._ranks) and self._kill_at is None
            if is_over:
                over_since = now if over_since is None else over_since
                if now - over_since >= _DRAIN_S:  # children that outlive their rank
                    for fd in list(self._outputs):
                        self._close(fd)
                if not self._outputs and self.is_done() and not self._awaits_reader(now, over_since):
                    break
            self._watch(is_over)
            for key, _ in self._selector.select(timeout=0.1 if is_over or self._kill_at else 0.2):
                if key.fd == wakeup_fd:
                    self._handle_signals(os.read(wakeup_fd, 4096))
                elif key.fd in self._outputs:
                    self._read(key.fd, is_over)
            now = time.monotonic()
            for output in list(self._outputs.values()):
                self._guarded(partial(output.stream.flush_idle, now))
            for sink in self._sinks:
                self._guarded(sink.drain)

    def _watch(self, is_over: bool) -> None:
        """Look at our own descriptors while they are behind, at ranks unless they add to one that is full."""
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

    def _awaits_reader(self, now: float, since: float) -> bool:
        """Tell whether to wait until what was written is read: after a signal only while somebody reads."""
        behind = [sink.moved_at for sink in self._sinks if sink.is_behind]
        if not behind or self._is_hurried:
            return False
        return not self._passed_on.intersection(_STOPPING) or now - max(since, *behind) < _DRAIN_S

    def _handle_signals(self, numbers: bytes) -> None:
        for place, number in enumerate(numbers, 1):
            # As in the kernel, one that comes before we have stopped prevents that.
            if number == signal.SIGTSTP and signal.SIGCONT not in numbers[place:]:
                self._suspend()
            elif number == signal.SIGCONT:
                self._signal_all(signal.SIGCONT)
            if number not in FORWARDED:
                continue
            if number in _STOPPING and number in self._passed_on:
                self._is_hurried = True  # asked twice
                self.stop()
                continue
            self._passed_on.add(number)
            for rank in self._ranks:
                if rank.code is None:
                    self._pass_on(rank, number)
            if number == signal.SIGTERM:
                self.grant_grace()

    def _suspend(self) -> None:
        """Stop the ranks and this process until somebody continues it; a grace does not run meanwhile."""
        begin = time.monotonic()
        self._signal_all(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        # The first process of a container cannot stop, and is here at once.
        self._signal_all(signal.SIGCONT)
        if self._kill_at is not None:
            self._kill_at += time.monotonic() - begin

    def _pass_on(self, rank: _Rank, number: int) -> None:
        # Python hears SIGTERM itself. Its children, such as workers that load data, are left in peace: a rank
        # that saves before it ends would fail of their death.
        if number == signal.SIGTERM and self._is_python:
            rank.process.send_signal(number)
        else:
            kill_group(rank.process.pid, number)

    def grant_grace(self) -> None:
        """Let ranks save and leave, and kill what does not end in time."""
        if not self._has_grace and not self.is_stopping:
            self._has_grace = True
            self._kill_at = time.monotonic() + self._grace_s

    def _reap(self) -> None:
        failed: list[_Rank] = []
        well: list[_Rank] = []
        for rank in self._ranks:
            if rank.code is None and (status := rank.process.poll()) is not None:
                if status:  # also if it ended of what became of its children
                    is_killed = not self.is_stopping and status in _KILLED
                    told = self._out_of_memory.explained(is_killed=is_killed)
                    self.out_of_memory = told or self.out_of_memory
                rank.code = 128 - status if status < 0 else status
                self.ended(rank.number, rank.code)
                (failed if rank.code else well).append(rank)
        self._reap_orphans()
        if self._kill_at is not None and not any(self._is_group_ours(rank) for rank in self._ranks):
            self._kill_at = None
        if failed:
            self._judge(failed)
        # After _judge(): it may have ended together with the failed one.
        if well and self._left_first is None:
            self._left_first = well[0]
        # What else ranks have left behind need not be waited for.
        if self._has_grace and not any(self._may_save(rank) for rank in self._ranks):
            self.stop()

    def _reap_orphans(self) -> None:
        """Wait for dead processes whose parents are gone: they are this one's, and look alive until then."""
        own = {rank.process.pid for rank in self._ranks}
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in own:
                    break  # a rank has ended just now, and is looked at first
                os.waitpid(found.si_pid, 0)

    def _judge(self, failed: Sequence[_Rank]) -> None:
        """Set the exit code, and stop all or let them leave."""
        worst = max(failed, key=lambda rank: self._grade(rank.code))
        before, now = self._grade(self._exit_code), self._grade(worst.code)
        if self._exit_code is None or (now > before and not self.is_stopping):
            self._exit_code = worst.code
        if self.is_stopping:
            return
        running = sum(other.code is None for other in self._ranks)
        what = f"rank {worst.number} (pid {worst.process.pid})"
        if now == _FAILED:
            first = self._left_first
            early = f" (rank {first.number} had left before it with exit code 0)" if first else ""
            rest = f"; stopping the {running} still running" if running else ""
            self._say(f"{what} failed first: {_describe(worst.code)}{early}{rest}")
            if self.out_of_memory:
                self._say(self.out_of_memory)
            self.stop()
        elif now == _ASKED and before < _ASKED:
            rest = f"; the {running} still running have {self._grace_s:g} s to leave" if running else ""
            self._say(f"{what} asked for a restart: {_describe(worst.code)}{rest}")
            self.grant_grace()

    def _say(self, message: str) -> None:
        self.write_error(f"smdp: {message}\n")

    def write_error(self, text: str) -> None:
        """Write to stderr, behind what ranks have written there."""
        with contextlib.suppress(OSError):
            self._sinks[1].write(text.encode(errors="replace"))

    def heard(self, rank: int, is_stderr: bool, data: bytes) -> None:
        """Take what a rank has written."""

    def ended(self, rank: int, code: int) -> None:
        """Take note that a rank has ended; it may still be heard."""

    def tick(self) -> None:
        """Do what has to be done in between; called at least every 0.2 seconds."""

    def is_done(self) -> bool:
        """Tell whether there is nothing left to do once all ranks have ended."""
        return True

    def is_silent(self, rank: int) -> bool:
        """Tell whether all that a rank has written was heard."""
        return all(output.rank != rank for output in self._outputs.values())

    def is_failure(self, code: int) -> bool:
        """Tell whether who ends with this code failed: asked for no restart, and was not told to end."""
        return self._grade(code) == _FAILED

    def _grade(self, code: int | None) -> int:
        """Say how bad it is. Who obeyed a signal is no reason to stop others, who may still save."""
        if not code:
            return _FINE
        if code == self._restart_code:
            return _ASKED
        return _OBEYED if code - 128 in self._passed_on else _FAILED

    def stop(self) -> None:
        """Send SIGTERM to all ranks; SIGKILL follows where that does not help."""
        if self.is_stopping:
            return
        self.is_stopping = True
        self._kill_at = time.monotonic() + self._stop_timeout_s
        self._signal_all(signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for rank in self._ranks:
            if self._is_group_ours(rank):
                kill_group(rank.process.pid, number)

    def _is_group_ours(self, rank: _Rank) -> bool:
        """True while the rank runs, or failed and left children; who ended well may leave some on purpose."""
        return rank.code is None or (rank.code != 0 and kill_group(rank.process.pid, 0))

    def _may_save(self, rank: _Rank) -> bool:
        """True while the rank runs; or its children do, after a shell died of the signal they got too."""
        if rank.code is None:
            return True
        has_told_all = not self._is_python and self._grade(rank.code) == _OBEYED
        return has_told_all and self._is_group_ours(rank)

    def _read(self, fd: int, is_over: bool) -> None:
        output = self._outputs[fd]
        try:
            data = os.read(fd, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self.heard(output.rank, output.is_stderr, data)
            self._guarded(partial(output.stream.feed, data, time.monotonic()))
            output.left -= len(data) if is_over else 0
        if not data or output.left < 0:
            self._close(fd)

    def _close(self, fd: int) -> None:
        output = self._outputs.pop(fd)
        if output.pipe in self._selector.get_map():
            self._selector.unregister(output.pipe)
        self._guarded(output.stream.close)
        output.pipe.close()

    def _guarded(self, write: Callable[[], None]) -> None:
        """Write; if that is over, end the job; where nobody reads any more, as a pipe's writer ends."""
        try:
            write()
        except OSError as error:
            is_pipe = isinstance(error, BrokenPipeError)
            if not is_pipe:
                self._say(f"the output of ranks cannot be written: {error}; stopping the job")
            if self._exit_code is None:
                self._exit_code = 128 + signal.SIGPIPE if is_pipe else 74  # EX_IOERR
            self.stop()


def _child_setup(cpus: set[int] | None) -> Callable[[], None]:
    """Make the function that runs between fork and exec; what it needs is looked up before."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def setup() -> None:
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # died in between
            os._exit(1)
        if cpus is not None:
            os.sched_setaffinity(0, cpus)

    return setup


def _reason(error: OSError | subprocess.SubprocessError) -> str:
    """Returns why a process cannot be started, with the limit that stands in the way."""
    if not isinstance(error, OSError) or error.errno not in _SHORTAGES:
        return str(error)
    text = _core.describe_shortage(_SHORTAGES[error.errno], "its process and pipes", error.errno)
    needed = f" smdp run itself needs two for each rank and {_OWN_FILES} more."
    return text.removeprefix("[smdp] ") + (needed if error.errno == errno.EMFILE else "")


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
