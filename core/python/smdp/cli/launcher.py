"""The launcher of `smdp run`: starts ranks on this machine and looks after them until the last one has ended.

All is done by one thread, so that forking is safe: a loop over the ranks' pipes and a wake-up descriptor
for signals. Every rank leads a process group of its own; what stops a rank stops its children. If this
process is killed, the kernel kills the ranks (PR_SET_PDEATHSIG) and a small guard process their children.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

from smdp import _core, config
from smdp.cli.guard import FORWARDED, Guard, kill_group
from smdp.cli.out_of_memory import OutOfMemory
from smdp.cli.rank_outputs import DRAIN_S, RankOutputs
from smdp.cli.rank_process import Rank, describe_exit, start_rank, why_not_started
from smdp.cli.signals import Signals

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_CHILD_SUBREAPER = 36
_FINE, _OBEYED, _ASKED, _FAILED = range(4)  # how a rank has ended, from good to bad
# As Python has it of the process itself, and as a shell has it of its last command.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


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
        self._ranks: list[Rank] = []
        self._selector = selectors.DefaultSelector()
        self._outputs = RankOutputs(self._selector, self.heard, self._end_unwritable)
        self._out_of_memory = OutOfMemory()
        self._exit_code: int | None = None
        self._left_first: Rank | None = None  # with exit code 0, while others still ran
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
        with Signals() as signals:
            self._selector.register(signals.fd, selectors.EVENT_READ)
            try:
                self._start()
                self._loop(signals)
            finally:
                for rank in self._ranks:  # only after an error of our own is one still alive
                    if rank.process.poll() is None:
                        kill_group(rank.process.pid, signal.SIGKILL)
                        rank.process.wait()
                if self._guard is not None:
                    self._guard.release()
                self._selector.close()
        return self._exit_code or 0

    def _start(self) -> None:
        width = len(str(self._first_rank + len(self._environments) - 1))
        for number, environ in enumerate(self._environments, self._first_rank):
            try:
                if self._guard is None:
                    self._guard = Guard()
                cpus = self._cpus[number - self._first_rank]
                rank = start_rank(number, self._argv, environ, cwd=self._cwd, cpus=cpus)
            except (OSError, subprocess.SubprocessError) as error:
                self._say(f"cannot start rank {number}: {why_not_started(error)}")
                self._exit_code = 126
                self.ended(number, self._exit_code)
                self.stop()
                break
            self._guard.watch(rank.process.pid)
            self._ranks.append(rank)
            self._outputs.add(
                number, rank.process, f"[rank {number:>{width}}] " if self._has_prefixes else ""
            )

    def _loop(self, signals: Signals) -> None:
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
                if now - over_since >= DRAIN_S:  # children that outlive their rank
                    self._outputs.close()
                if not self._outputs and self.is_done() and not self._awaits_reader(now, over_since):
                    break
            self._outputs.watch(is_over)
            for key, _ in self._selector.select(timeout=0.1 if is_over or self._kill_at else 0.2):
                if key.fd == signals.fd:
                    self._handle_signals(signals.read())
                elif key.fd in self._outputs:
                    self._outputs.read(key.fd, is_over)
            self._outputs.write_on()

    def _awaits_reader(self, now: float, since: float) -> bool:
        """Returns whether to wait until the output is read: after a signal, only while somebody reads."""
        if self._is_hurried:
            return False
        if not self._passed_on.intersection(_STOPPING):
            return self._outputs.is_behind
        return self._outputs.is_being_read(now, since)

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

    def _pass_on(self, rank: Rank, number: int) -> None:
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
        failed: list[Rank] = []
        well: list[Rank] = []
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

    def _judge(self, failed: Sequence[Rank]) -> None:
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
            self._say(f"{what} failed first: {describe_exit(worst.code)}{early}{rest}")
            if self.out_of_memory:
                self._say(self.out_of_memory)
            self.stop()
        elif now == _ASKED and before < _ASKED:
            rest = f"; the {running} still running have {self._grace_s:g} s to leave" if running else ""
            self._say(f"{what} asked for a restart: {describe_exit(worst.code)}{rest}")
            self.grant_grace()

    def _say(self, message: str) -> None:
        self.write_error(f"smdp: {message}\n")

    def write_error(self, text: str) -> None:
        """Write to stderr, behind what ranks have written there."""
        with contextlib.suppress(OSError):
            self._outputs.write_error(text)

    def heard(self, rank: int, is_stderr: bool, data: bytes) -> None:
        """Take what a rank has written."""

    def ended(self, rank: int, code: int) -> None:
        """Take note that a rank has ended; it may still be heard."""

    def tick(self) -> None:
        """Do what has to be done in between; called at least every 0.2 seconds."""

    def is_done(self) -> bool:
        """Returns whether nothing is left to do once all ranks have ended."""
        return True

    def is_silent(self, rank: int) -> bool:
        """Returns whether all output of a rank has been read."""
        return self._outputs.is_silent(rank)

    def is_failure(self, code: int) -> bool:
        """Returns whether this code is a failure: neither a wish for a restart nor an order obeyed."""
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

    def _is_group_ours(self, rank: Rank) -> bool:
        """True while the rank runs, or failed and left children; who ended well may leave some on purpose."""
        return rank.code is None or (rank.code != 0 and kill_group(rank.process.pid, 0))

    def _may_save(self, rank: Rank) -> bool:
        """True while the rank runs; or its children do, after a shell died of the signal they got too."""
        if rank.code is None:
            return True
        has_told_all = not self._is_python and self._grade(rank.code) == _OBEYED
        return has_told_all and self._is_group_ours(rank)

    def _end_unwritable(self, error: OSError) -> None:
        """End the job, as output is over; where nobody reads any more, as a pipe's writer ends."""
        is_pipe = isinstance(error, BrokenPipeError)
        if not is_pipe:
            self._say(f"the output of ranks cannot be written: {error}; stopping the job")
        if self._exit_code is None:
            self._exit_code = 128 + signal.SIGPIPE if is_pipe else 74  # EX_IOERR
        self.stop()
