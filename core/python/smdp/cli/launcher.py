"""The launcher of `smdp run`: starts ranks on this machine and supervises them until all have ended.

A single thread does all the work, so that forking is safe: it loops over the ranks' pipes and a wake-up
descriptor for signals. Every rank leads its own process group, so a signal that stops a rank also stops its
children. If this process is killed, the kernel kills the ranks (PR_SET_PDEATHSIG), and a small guard process
kills their children.
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
from smdp._shown import counted
from smdp.cli.guard import FORWARDED, Guard, kill_group
from smdp.cli.out_of_memory import OutOfMemory
from smdp.cli.rank_outputs import DRAIN_S, RankOutputs
from smdp.cli.rank_process import Rank, describe_exit, start_rank, why_not_started
from smdp.cli.signals import Signals

_STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_PR_SET_CHILD_SUBREAPER = 36
_FINE, _OBEYED, _ASKED, _FAILED = range(4)  # how a rank has ended, from best to worst
# SIGKILL in Python's exit codes, and in those that a shell returns for its last command.
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class Launcher:
    """Starts one process per environment, merges their output, and ends them together.

    Create it in the main thread of a process without other threads, and call run() once. Subclasses can
    override heard(), ended(), tick() and is_done().

    Args:
        argv: The command that every rank executes.
        environments: The environment variables of each rank.
        cpus: The CPUs each rank may run on. Default: those of this process.
        stop_timeout_s: Seconds between SIGTERM and SIGKILL after a rank has failed.
        grace_s: Seconds that ranks have to save and exit.
        restart_code: The exit code by which a rank requests a restart.
        has_prefixes: Whether each line of output begins with its rank.
        first_rank: Number of the first rank.
        cwd: Working directory of the ranks. Default: that of this process.

    Attributes:
        is_stopping: Whether the launcher has sent SIGTERM on its own, or killed ranks after the grace period.
        out_of_memory: A sentence about processes that the kernel's OOM killer has ended; empty if none.
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
        self._left_first: Rank | None = None  # the first rank that exited with code 0
        self._has_grace = False
        self._passed_on: set[int] = set()
        self.is_stopping = False
        self.out_of_memory = ""
        self._kill_at: float | None = None
        self._is_hurried = False

    def run(self) -> int:
        """Runs the ranks to the end and returns the exit code."""
        # Orphaned children of ranks become children of this process, which can then wait for them.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        _core.raise_open_files_limit()
        with Signals() as signals:
            self._selector.register(signals.fd, selectors.EVENT_READ)
            try:
                self._start()
                self._loop(signals)
            finally:
                for rank in self._ranks:  # ranks are still alive here only after an internal error
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
                        f"{counted(running, 'rank')} did not exit within {self._grace_s:g} s; killing"
                        f" {'it' if running == 1 else 'them'}"
                    )
                self._signal_all(signal.SIGKILL)
                self._kill_at = None
            is_over = all(rank.code is not None for rank in self._ranks) and self._kill_at is None
            if is_over:
                over_since = now if over_since is None else over_since
                if now - over_since >= DRAIN_S:  # children that outlive their rank keep the pipes open
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
        """Returns whether to wait for the reader of the output; after a signal, only if it makes progress."""
        if self._is_hurried:
            return False
        if not self._passed_on.intersection(_STOPPING):
            return self._outputs.is_behind
        return self._outputs.is_being_read(now, since)

    def _handle_signals(self, numbers: bytes) -> None:
        for place, number in enumerate(numbers, 1):
            # As in the kernel, a SIGCONT that arrives before the stop cancels it.
            if number == signal.SIGTSTP and signal.SIGCONT not in numbers[place:]:
                self._suspend()
            elif number == signal.SIGCONT:
                self._signal_all(signal.SIGCONT)
            if number not in FORWARDED:
                continue
            if number in _STOPPING and number in self._passed_on:
                self._is_hurried = True  # the signal arrived a second time
                self.stop()
                continue
            self._passed_on.add(number)
            for rank in self._ranks:
                if rank.code is None:
                    self._pass_on(rank, number)
            if number == signal.SIGTERM:
                self.grant_grace()

    def _suspend(self) -> None:
        """Stops the ranks and this process until SIGCONT; the grace period is extended by that time."""
        begin = time.monotonic()
        self._signal_all(signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        # The init process of a container cannot be stopped and continues here immediately.
        self._signal_all(signal.SIGCONT)
        if self._kill_at is not None:
            self._kill_at += time.monotonic() - begin

    def _pass_on(self, rank: Rank, number: int) -> None:
        # For Python, only the process itself gets SIGTERM, not its children: a rank that saves before it
        # exits would fail if its data loader workers died.
        if number == signal.SIGTERM and self._is_python:
            rank.process.send_signal(number)
        else:
            kill_group(rank.process.pid, number)

    def grant_grace(self) -> None:
        """Starts the grace period for ranks to save and exit, after which they are killed."""
        if not self._has_grace and not self.is_stopping:
            self._has_grace = True
            self._kill_at = time.monotonic() + self._grace_s

    def _reap(self) -> None:
        failed: list[Rank] = []
        well: list[Rank] = []
        for rank in self._ranks:
            if rank.code is None and (status := rank.process.poll()) is not None:
                if status:  # a rank may also have failed because its children were killed
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
        # Set after _judge(), because this rank may have ended at the same time as the failed one.
        if well and self._left_first is None:
            self._left_first = well[0]
        # Other processes that ranks have left behind do not delay the end.
        if self._has_grace and not any(self._may_save(rank) for rank in self._ranks):
            self.stop()

    def _reap_orphans(self) -> None:
        """Reaps orphaned processes that have ended; until then, their process groups appear to be alive."""
        own = {rank.process.pid for rank in self._ranks}
        with contextlib.suppress(ChildProcessError):
            while True:
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if found is None or found.si_pid in own:
                    break  # a rank has just ended and must be handled first
                os.waitpid(found.si_pid, 0)

    def _judge(self, failed: Sequence[Rank]) -> None:
        """Sets the exit code, and stops the other ranks or starts their grace period."""
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
            early = f" (rank {first.number} had exited before it with exit code 0)" if first else ""
            rest = f"; stopping {counted(running, 'other rank')}" if running else ""
            self._say(f"{what} failed first: {describe_exit(worst.code)}{early}{rest}")
            if self.out_of_memory:
                self._say(self.out_of_memory)
            self.stop()
        elif now == _ASKED and before < _ASKED:
            others = f"{counted(running, 'other rank')} {'has' if running == 1 else 'have'}"
            rest = f"; {others} {self._grace_s:g} s to exit" if running else ""
            self._say(f"{what} requested a restart: {describe_exit(worst.code)}{rest}")
            self.grant_grace()

    def _say(self, message: str) -> None:
        self.write_error(f"smdp: {message}\n")

    def write_error(self, text: str) -> None:
        """Writes to stderr, after the output of ranks that is waiting to be written there."""
        with contextlib.suppress(OSError):
            self._outputs.write_error(text)

    def heard(self, rank: int, is_stderr: bool, data: bytes) -> None:
        """Called with the output of a rank. Does nothing by default."""

    def ended(self, rank: int, code: int) -> None:
        """Called when a rank has ended; more of its output may follow. Does nothing by default."""

    def tick(self) -> None:
        """Called at least every 0.2 seconds. Does nothing by default."""

    def is_done(self) -> bool:
        """Returns whether run() may return once all ranks have ended."""
        return True

    def is_silent(self, rank: int) -> bool:
        """Returns whether all output of a rank has been read."""
        return self._outputs.is_silent(rank)

    def is_failure(self, code: int) -> bool:
        """Returns whether an exit code is a failure, and neither a restart request nor a forwarded signal."""
        return self._grade(code) == _FAILED

    def _grade(self, code: int | None) -> int:
        """Returns how bad an exit code is, from _FINE to _FAILED.

        A rank that ended from a forwarded signal has not failed, so the others may continue to save.
        """
        if not code:
            return _FINE
        if code == self._restart_code:
            return _ASKED
        return _OBEYED if code - 128 in self._passed_on else _FAILED

    def stop(self) -> None:
        """Sends SIGTERM to all ranks, followed by SIGKILL after the stop timeout."""
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
        """Returns whether to signal a rank's process group: it runs, or it failed and left children behind.

        Children of a rank that ended well are left alone, because it may have started them on purpose.
        """
        return rank.code is None or (rank.code != 0 and kill_group(rank.process.pid, 0))

    def _may_save(self, rank: Rank) -> bool:
        """Returns whether the rank may still be saving.

        This is the case while it runs, or while its children run after a shell died from a signal that they
        received as well.
        """
        if rank.code is None:
            return True
        has_told_all = not self._is_python and self._grade(rank.code) == _OBEYED
        return has_told_all and self._is_group_ours(rank)

    def _end_unwritable(self, error: OSError) -> None:
        """Ends the job because its output cannot be written; for a closed pipe, as SIGPIPE would."""
        is_pipe = isinstance(error, BrokenPipeError)
        if not is_pipe:
            self._say(f"cannot write the output of the ranks: {error}; stopping the job")
        if self._exit_code is None:
            self._exit_code = 128 + signal.SIGPIPE if is_pipe else 74  # EX_IOERR
        self.stop()
