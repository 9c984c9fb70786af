"""Functions that stop half-way, and the threads and descriptors that they run on."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from smdp.torch.pipelining.engine.coroutines import Coroutine, CoroutinePool


def descriptors() -> set[str]:
    gc.collect()  # what earlier tests have left
    # Without the listing's own.
    return {name for name in os.listdir("/proc/self/fd") if Path("/proc/self/fd", name).exists()}


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def suspended(pool: CoroutinePool, notes: list[str], name: str) -> Coroutine:
    def function() -> None:
        notes.append(f"{name} begins")
        coroutine.suspend()
        notes.append(f"{name} ends")

    coroutine = pool.start(function)
    coroutine.resume()
    return coroutine


def test_control_goes_back_and_forth_and_nothing_is_left() -> None:
    before, threads = descriptors(), set(threading.enumerate())  # some of other tests may end meanwhile
    pool, notes = CoroutinePool(), list[str]()
    coroutines = [suspended(pool, notes, name) for name in "abc"]
    assert len(descriptors()) == len(before) + 6
    coroutines[1].resume()
    coroutines[0].resume()
    coroutines[2].abandon()
    assert notes == ["a begins", "b begins", "c begins", "b ends", "a ends"]
    assert all(coroutine.is_finished for coroutine in coroutines)
    suspended(pool, notes, "d").resume()
    assert len(set(threading.enumerate()) - threads) == 3, "a thread that is idle is used again"
    pool.close()
    until(lambda: set(threading.enumerate()) <= threads)
    assert descriptors() == before


def test_an_error_reaches_who_resumes() -> None:
    pool, threads = CoroutinePool(), threading.active_count()

    def function() -> None:
        raise ValueError("of the model")

    with pytest.raises(ValueError, match="of the model"):
        pool.start(function).resume()
    pool.close()
    until(lambda: threading.active_count() == threads)


def test_a_forked_child_lets_go_of_them_and_wakes_no_thread_of_its_parent() -> None:
    before, threads = descriptors(), threading.active_count()
    pool, notes = CoroutinePool(), list[str]()
    suspended(pool, notes, "a").resume()
    held = descriptors() - before
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        found = descriptors()  # fewer than in the parent, if an earlier test has left a group open
        pool.close()
        os._exit(0 if descriptors() == found - held else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    time.sleep(0.1)  # in which a thread that the child had woken would have run
    suspended(pool, notes, "b").resume()
    assert notes[-1] == "b ends"
    pool.close()
    until(lambda: threading.active_count() == threads)


def test_an_interrupt_while_a_strand_runs_costs_no_thread() -> None:
    """KeyboardInterrupt leaves resume() before the coroutine has ended; abandon() waits for it."""
    before, threads = descriptors(), threading.active_count()
    pool, notes = CoroutinePool(), list[str]()
    may_end = threading.Event()

    def function() -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        may_end.wait(10)
        notes.append("ends")

    coroutine = pool.start(function)
    # A job in the background of a shell ignores it.
    before_handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            coroutine.resume()
    finally:
        signal.signal(signal.SIGINT, before_handler)
    threading.Timer(0.05, may_end.set).start()
    coroutine.abandon()
    assert notes == ["ends"]
    time.sleep(0.1)  # in which a second wake-up, were there one, would come to its thread
    suspended(pool, notes, "a").resume()
    pool.close()
    until(lambda: threading.active_count() == threads)
    assert descriptors() == before
