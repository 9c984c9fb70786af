"""Preemption of spot machines: all ranks learn, at the same call, that one rank received a signal.

Every call of preempted() returns the result of the exchange that the previous call started, and starts a new
exchange of one byte per rank. The exchange runs in a separate group while the step computes, so it does not
delay other collectives. All ranks read the same bytes and therefore return the same answer at the same call.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from . import _core, _world
from ._errors import ConfigError, SmdpError, TimeoutError
from ._handle import Handle
from .config import Config
from .group import Group

_log = logging.getLogger(__name__)

_OFTEN = " All ranks must call smdp.preempted() the same number of times: once per step."

# How long a rank whose program has ended waits for ranks that have not yet made the last call.
_FAREWELL_S = 5.0

# The signals received so far, in order. True if no other Python handler was called for the signal.
_received: dict[int, bool] = {}
# Whether preempted() has returned True since.
_is_acted_on = False
# The process that watches signals.
_owner = 0
# For every watched signal: the handlers that were installed before, newest last, and how many are running.
_before: dict[int, list[Any]] = {}
_running: dict[int, int] = {}
# Signals that the program itself asked to watch; give_back() keeps watching them.
_lasting: set[int] = set()

_exchange: _Exchange | None = None


def watch_preemption(*signals: int) -> None:
    """Starts recording signals that announce the end of this machine, instead of dying from them.

    The first call of preempted() does this for SIGTERM. Call this function to watch other signals, or to
    cover the time before the first step. A Python handler that was installed before is called after the
    signal has been recorded. Repeated signals have no further effect, because both the launcher and the
    job scheduler may send one.

    Args:
        *signals: Signals to watch. Default: SIGTERM.

    Raises:
        ConfigError: This is not the main thread, the only one that may install handlers, and not all of the
            signals are watched yet; or SMDP_PREEMPTED_EXIT_CODE is invalid.
        ValueError: The signal does not exist or cannot be handled.
        TypeError: A signal is not a number.
    """
    watch(*signals)
    _lasting.update(signals or (signal.SIGTERM,))


def watch(*signals: int) -> None:
    """Watches signals like watch_preemption(), but only until give_back() is called."""
    global _owner, _is_acted_on
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        if is_watching() and all(number in _before for number in signals or (signal.SIGTERM,)):
            return
        raise ConfigError(
            f"[smdp] only the main thread can start watching signals, but this is thread {thread.name!r}."
            " Call smdp.watch_preemption() in the main thread first."
        )
    exit_code()  # report an invalid exit code early
    if _owner != os.getpid():
        # A forked child keeps its parent's handler, but not the signals that the parent received.
        _owner, _is_acted_on = os.getpid(), False
        _received.clear()
        _running.clear()
    for number in signals or (signal.SIGTERM,):
        if not isinstance(number, int):
            raise TypeError(
                f"[smdp] watch_preemption() got {number!r}, which is not a signal; pass, for example,"
                " signal.SIGTERM."
            )
        previous = signal.getsignal(number) if number in signal.valid_signals() else None
        if previous is _note:
            if number in _before:
                continue
            previous = signal.SIG_DFL  # other code saved our handler and restored it after give_back()
        if not callable(previous):
            _before.pop(number, None)  # earlier handlers cannot be called anymore
        # Set before the handler is installed, which needs this as soon as a signal arrives.
        _before.setdefault(number, []).append(previous)
        try:
            signal.signal(number, _note)
        except (ValueError, OSError) as error:
            del _before[number][-1]
            if not _before[number]:
                del _before[number]
            raise ValueError(f"[smdp] cannot watch signal {number}: {error}.") from error


def preempted() -> bool:
    """Returns whether any rank has been told that its machine is going away.

    Call it once per step on all ranks. It returns True on all ranks at the same call, at the latest in the
    second call after the signal, and in every call after that.

    Raises:
        ConfigError: init() has not been called; or this is the first call and not in the main thread.
        TimeoutError: Another rank has not called it, or not as often.
        SmdpError: A rank was lost.
    """
    global _exchange, _is_acted_on
    if not _before:
        watch_preemption()
    elif not is_watching() and threading.current_thread() is threading.main_thread():
        watch(*_before)
    world = _world.any_core()
    if _exchange is None or _exchange.world != world.id:
        forget()
        _exchange = _Exchange(world)
    is_told = _exchange.answer()
    _is_acted_on = _is_acted_on or is_told
    return is_told


def exit_if_preempted(save: Callable[[], object], *, code: int | None = None) -> None:
    """Saves and exits once any rank has been told that its machine is going away.

    Call it once per step on all ranks, instead of preempted(). After saving, each rank waits for all others,
    because launchers stop the remaining ranks when one exits. Outside the main thread, SystemExit ends only
    that thread; exit the process where you join it.

    Args:
        save: Function that saves a checkpoint; called on all ranks. Its exceptions are not caught.
        code: Exit code that requests a restart, 1 to 125. Default: SMDP_PREEMPTED_EXIT_CODE, 75.

    Raises:
        SystemExit: After saving.
        ValueError: The code is not an exit code from 1 to 125.
        SmdpError: As for preempted().
    """
    code = exit_code(code)
    if preempted():
        save()
        leave(code)


def leave(code: int | None = None) -> NoReturn:
    """Waits for all ranks and exits. Call it after preempted() has returned True.

    Raises:
        SystemExit: Always.
    """
    code = exit_code(code)
    if _exchange is not None:
        _exchange.meet()
    if threading.current_thread() is threading.main_thread():
        # Python removes handlers while it shuts down; another signal would then change the exit code.
        for number in _before:
            signal.signal(number, signal.SIG_IGN)
    raise SystemExit(code)


def exit_code(code: int | None = None) -> int:
    """Returns the exit code that requests a restart.

    Raises:
        ConfigError: SMDP_PREEMPTED_EXIT_CODE is invalid.
        ValueError: `code` is invalid.
    """
    if code is None:
        return Config.from_environ().preempted_exit_code
    if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 125:
        raise ValueError(f"[smdp] code = {code!r} is not valid; allowed: an exit code, 1 to 125.")
    return code


def watched() -> set[int]:
    """Returns the signals that this process watches, or those it would watch by default."""
    return set(_before) or {signal.SIGTERM}


def can_watch() -> bool:
    """Returns whether signals are watched already, or can be watched from this thread."""
    return is_watching() or threading.current_thread() is threading.main_thread()


def is_watching() -> bool:
    """Returns whether signals are watched already, possibly through a Python handler installed later."""
    return _owner == os.getpid() and any(callable(signal.getsignal(number)) for number in _before)


def give_back(*, is_failing: bool = False) -> None:
    """Restores the signal handlers that were installed before watch(); works in the main thread only.

    Handlers that other code has installed since stay in place, and signals that the program itself asked to
    watch by watch_preemption() or preempted() stay watched. A recorded signal is sent again, unless
    preempted() has returned True since or another Python handler was called for it.

    Args:
        is_failing: An exception is being raised, which a signal must not hide. Recorded signals are then kept
            for the next training.
    """
    global _is_acted_on
    if _owner != os.getpid() or threading.current_thread() is not threading.main_thread():
        return
    given = [one for one in _before if one not in _lasting and signal.getsignal(one) is _note]
    for number in given:
        previous = _before[number].pop()
        if not _before[number]:
            del _before[number]
        signal.signal(number, signal.SIG_DFL if previous is None else previous)
    if is_failing:
        return
    is_over, _is_acted_on = _is_acted_on, False
    for number in [one for one in _received if one not in _lasting]:
        is_unheard = _received.pop(number)
        if is_unheard and number in given and not is_over:
            os.kill(os.getpid(), number)


def has_world() -> bool:
    """Returns whether there is a group of all ranks for preempted() to use."""
    try:
        _world.any_core()
    except ConfigError:
        return False
    return True


@_world.at_shutdown
def forget() -> None:
    """Leaves the group that exchanges the signals."""
    global _exchange
    if _exchange is not None:
        _exchange.close()
        _exchange = None


@_world.at_end
def finish() -> None:
    """Waits, at the end of a program, for ranks that have not yet completed their last call."""
    if _exchange is not None and not _world.why_it_ends():
        _exchange.finish()


def _note(number: int, frame: FrameType | None) -> None:
    before = _before.get(number, [])
    if os.getpid() != _owner or not before:
        # In a forked child, or after other code restored this handler: act as if smdp were not watching.
        signal.signal(number, (before and before[0]) or signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    # A handler that was installed later may call this one again; then call the next older handler.
    depth = _running.get(number, 0)
    previous = before[-1 - depth] if depth < len(before) else None
    _received.setdefault(number, not callable(previous))
    if callable(previous):
        _running[number] = depth + 1
        try:
            previous(number, frame)
        finally:
            _running[number] = depth


class _Exchange:
    """The exchange of received signals between the ranks of one world."""

    def __init__(self, world: _core.Group) -> None:
        self.world = world.id
        self._rank = world.rank
        core = None if world.size == 1 else world.split(0, world.rank, "preemption")
        self._group = None if core is None else Group(core, 0.0)
        self._own = np.zeros(1, np.uint8)
        self._all = np.zeros(world.size, np.uint8)
        self._in_flight: Handle | None = None
        self._calls = 0
        self._is_over = False

    def answer(self) -> bool:
        if self._is_over:
            return True
        self._calls += 1
        if self._group is None:
            self._all[0] = bool(_received)
        elif self._in_flight is not None:
            try:
                self._in_flight.wait()
            except TimeoutError as error:
                raise TimeoutError(f"{error}{_OFTEN}") from error
        if self._all.any():
            self._is_over = True
            self._tell()
        elif self._group is not None:
            self._own[0] = bool(_received)
            self._in_flight = self._group.all_gather(self._own, out=self._all[:, None], async_op=True)
        return self._is_over

    def meet(self) -> None:
        if self._group is not None:
            self._group.barrier()

    def finish(self) -> None:
        if self._in_flight is not None and not self._is_over:
            # A rank that fails, or calls less often, is reported elsewhere.
            with contextlib.suppress(SmdpError):
                self._in_flight.wait(_FAREWELL_S)

    def close(self) -> None:
        if sys.exc_info()[0] is None:
            self.finish()
        if self._group is not None:
            self._group.shutdown()

    def _tell(self) -> None:
        told = [int(rank) for rank in self._all.nonzero()[0]]
        if self._rank == told[0]:
            name = signal.Signals(next(iter(_received))).name if _received else "a signal"
            _log.warning(
                "[smdp] ranks %s of %d received %s; all ranks stop at call %d of smdp.preempted()",
                told,
                self._all.size,
                name,
                self._calls,
            )
