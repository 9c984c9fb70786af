"""Spot machines: a signal that reaches one rank becomes an answer that all ranks get at the same call.

Every call of preempted() starts an exchange of one byte per rank and answers with what the one of the call
before has brought. It travels while the step computes, in a group of its own: it waits for no other
collective and holds none up. All ranks read the same bytes, so they get the same answer at the same call.
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

_OFTEN = " All ranks must call smdp.preempted() equally often: once per step."

# How long a rank whose program has ended waits for those that have still to make its last call.
_FAREWELL_S = 5.0

# What the process was told, first signal first: whether no handler of Python code has heard it, too.
_received: dict[int, bool] = {}
# Whether preempted() has been true since.
_is_acted_on = False
# Which process it is.
_owner = 0
# Of every watched signal: the handlers that were there before, newest last, and how many of them run now.
_before: dict[int, list[Any]] = {}
_running: dict[int, int] = {}
# Those that the program itself has asked for, which give_back() leaves as they are.
_lasting: set[int] = set()

_exchange: _Exchange | None = None


def watch_preemption(*signals: int) -> None:
    """Note signals that announce the end of this machine, from now on, instead of dying of them.

    The first call of preempted() does it for SIGTERM. Call it earlier to cover what comes before the first
    step, or for other signals. A handler that Python code has set before is called after the signal has been
    noted. Further signals change nothing: launchers and job systems may both send one.

    Args:
        *signals: Default: SIGTERM.

    Raises:
        ConfigError: This is not the main thread, which alone may set handlers, and they are not all watched
            yet; or SMDP_PREEMPTED_EXIT_CODE is wrong.
        ValueError: The system knows no such signal, or lets nobody handle it.
        TypeError: It is no number.
    """
    watch(*signals)
    _lasting.update(signals or (signal.SIGTERM,))


def watch(*signals: int) -> None:
    """As watch_preemption(), but only until give_back(), whoever calls that: a training may fail before."""
    global _owner, _is_acted_on
    thread = threading.current_thread()
    if thread is not threading.main_thread():
        if is_watching() and all(number in _before for number in signals or (signal.SIGTERM,)):
            return
        raise ConfigError(
            f"[smdp] signals can be watched from the main thread only, this is {thread.name!r}; call"
            " smdp.watch_preemption() in the main thread first."
        )
    exit_code()  # what is wrong with it should be known now
    if _owner != os.getpid():
        # Forked from a process that watches: its handler stays, what it was told does not.
        _owner, _is_acted_on = os.getpid(), False
        _received.clear()
        _running.clear()
    for number in signals or (signal.SIGTERM,):
        if not isinstance(number, int):
            raise TypeError(f"[smdp] watch_preemption() takes signals, e.g. signal.SIGTERM; got {number!r}.")
        previous = signal.getsignal(number) if number in signal.valid_signals() else None
        if previous is _note:
            if number in _before:
                continue
            previous = signal.SIG_DFL  # somebody kept ours, and put it back after give_back()
        if not callable(previous):
            _before.pop(number, None)  # nothing calls a handler that stood there earlier
        # Before the handler is there: it needs this as soon as a signal comes.
        _before.setdefault(number, []).append(previous)
        try:
            signal.signal(number, _note)
        except (ValueError, OSError) as error:
            del _before[number][-1]
            if not _before[number]:
                del _before[number]
            raise ValueError(f"[smdp] signal {number} cannot be watched: {error}.") from error


def preempted() -> bool:
    """Tell whether a rank has been told that its machine goes away; call it once per step, on all ranks.

    True on all ranks at the same call, and from then on: in the second call after a signal at the latest.

    Raises:
        ConfigError: There is no world yet; or, the first time, this is not the main thread.
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
    """Once a rank has been told that its machine goes away: save, wait for all ranks, exit.

    Call it once per step, on all ranks, in place of preempted(). It waits because launchers stop the ranks
    that still save when they see others exit. In a thread other than the main one SystemExit ends that
    thread only: exit where it is joined.

    Args:
        save: Called on all ranks; what it raises ends the rank as any exception does.
        code: Exit code, which asks for a restart. Default: SMDP_PREEMPTED_EXIT_CODE, 75.

    Raises:
        SystemExit: After saving.
        ValueError: The code is not one that a process can exit with.
        SmdpError: As of preempted().
    """
    code = exit_code(code)
    if preempted():
        save()
        leave(code)


def leave(code: int | None = None) -> NoReturn:
    """Wait until all ranks have come here, then exit; for after preempted() has been true.

    Raises:
        SystemExit: Always.
    """
    code = exit_code(code)
    if _exchange is not None:
        _exchange.meet()
    if threading.current_thread() is threading.main_thread():
        # While Python ends it gives handlers up, and another signal would change the exit code.
        for number in _before:
            signal.signal(number, signal.SIG_IGN)
    raise SystemExit(code)


def exit_code(code: int | None = None) -> int:
    """Give the exit code that asks for a restart.

    Raises:
        ConfigError: SMDP_PREEMPTED_EXIT_CODE is wrong.
        ValueError: The given one is.
    """
    if code is None:
        return Config.from_environ().preempted_exit_code
    if isinstance(code, bool) or not isinstance(code, int) or not 1 <= code <= 125:
        raise ValueError(f"[smdp] code is {code!r}; allowed: an exit code, 1 to 125.")
    return code


def watched() -> set[int]:
    """Give the signals that this process notes, or, before it does, those that it would."""
    return set(_before) or {signal.SIGTERM}


def can_watch() -> bool:
    """Tell whether signals are watched already, or can be from this thread."""
    return is_watching() or threading.current_thread() is threading.main_thread()


def is_watching() -> bool:
    """Tell whether signals are watched already, perhaps beneath a handler that Python code has set since."""
    return _owner == os.getpid() and any(callable(signal.getsignal(number)) for number in _before)


def give_back(*, is_failing: bool = False) -> None:
    """Handle signals again as before watch(), in the main thread; what somebody set since stays.

    So do signals that the program itself has asked for by watch_preemption() or preempted(). A signal that
    was noted comes again, unless preempted() has been true since or a handler of Python code has heard it.

    Args:
        is_failing: An exception is under way, which a signal must not hide: what was noted is kept for the
            next training. Default: no.
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
    """Tell whether preempted() has ranks to ask."""
    try:
        _world.any_core()
    except ConfigError:
        return False
    return True


@_world.at_shutdown
def forget() -> None:
    """Leaves the group of the exchange."""
    global _exchange
    if _exchange is not None:
        _exchange.close()
        _exchange = None


@_world.at_end
def finish() -> None:
    """Gives ranks that are a little behind the answer of their last call, at the end of a program."""
    if _exchange is not None and not _world.why_it_ends():
        _exchange.finish()


def _note(number: int, frame: FrameType | None) -> None:
    before = _before.get(number, [])
    if os.getpid() != _owner or not before:
        # A forked child, whose parent may end it by this signal, or put back by somebody: as without us.
        signal.signal(number, (before and before[0]) or signal.SIG_DFL)
        os.kill(os.getpid(), number)
        return
    # A handler that was put before us may call us in turn: then it is the turn of the one before it.
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
    """Of the ranks of one world."""

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
            # Who fails, or calls less often, hears of it elsewhere.
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
                "[smdp] ranks %s of %d got %s: all ranks stop at call %d of smdp.preempted()",
                told,
                self._all.size,
                name,
                self._calls,
            )
