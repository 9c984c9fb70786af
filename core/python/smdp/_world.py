"""The world: the group of all ranks, made once per process by ``init``."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, NoReturn

from . import _core, _misspelt, _session
from ._arguments import seconds
from ._errors import ClosedError, ConfigError
from ._other_threads import has_other_threads
from .config import Config
from .environments import detect
from .environments.master import check_master, warn_if_elsewhere
from .group import Group

_world: Group | None = None
# The process that made it: a forked child inherits the variable, but cannot use the group.
_owner = 0
# Held by who makes it: a second thread waits, and gets the same one; a forked child has one of its own.
_making = threading.RLock()
os.register_at_fork(after_in_child=lambda: globals().update(_making=threading.RLock()))
# Groups over all ranks that plugins have made, oldest first.
_offered: list[weakref.ref[Any]] = []


def init(
    rank: int | None = None,
    world_size: int | None = None,
    *,
    local_rank: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    timeout: float | None = None,
    store: Any = None,
) -> Group:
    """Joins the world and returns it; a second call returns the same group, unless shutdown() came between.

    Args:
        rank: This process's rank, 0 to world_size - 1. Default: the launcher's, see smdp.environments.
        world_size: Number of ranks. Default: the launcher's, or 1 without a launcher.
        local_rank: Index among the ranks of this host. Only checked against what smdp finds.
        master_addr: Name or address of rank 0's machine.
        master_port: Port of rank 0's store.
        timeout: Seconds that an operation may take, at most 10^7. Default: SMDP_TIMEOUT, 30 minutes.
        store: An object with torch's store interface (set, get, check, wait) to find the other ranks by.
            Default: rank 0 serves one at master_addr, master_port.

    Raises:
        ConfigError: A variable makes no sense; names it, its value and what is allowed.
        ValueError: An argument makes none; likewise.
        TimeoutError: Not all ranks came; lists who did and who did not.
        ClosedError: This process is a forked child of a rank.
    """
    with _making:
        return _init(rank, world_size, local_rank, master_addr, master_port, timeout, store)


def _init(
    rank: int | None,
    world_size: int | None,
    local_rank: int | None,
    master_addr: str | None,
    master_port: int | None,
    timeout: float | None,
    store: Any,
) -> Group:
    global _world, _owner
    if _world is not None:
        if _owner != os.getpid():
            raise ClosedError(
                f"[smdp] this process is a forked child of rank {_world.rank} and cannot be a rank itself."
                " Communicate in the parent, or start the child with spawn and its own smdp.init()."
            )
        return _world
    if master_addr is not None and not isinstance(master_addr, str):
        raise ValueError(
            f"[smdp] master_addr={master_addr!r} is not valid; allowed: a name or address as text."
        )
    if store is not None and not isinstance(store, _core.Store):
        lacks = [name for name in ("set", "get", "check", "wait") if not callable(getattr(store, name, None))]
        if lacks:
            raise ValueError(
                f"[smdp] store is a {type(store).__name__}, which has no {lacks[0]}(); allowed: an object"
                " with torch's store interface (set, get, check, wait)."
            )
    if timeout is not None:
        timeout = seconds("timeout", timeout)
    launch = detect(
        os.environ,
        rank=rank,
        world_size=world_size,
        local_rank=local_rank,
        master_addr=master_addr,
        master_port=master_port,
        needs_master=store is None,
    )
    _misspelt.warn(is_teller=launch.rank == 0)
    config = Config.from_environ(os.environ)
    options = config.options(launch.master_addr)
    if store is not None:
        base = store if isinstance(store, _core.Store) else _core.python_store(store)
        deadline = time.monotonic() + config.init_timeout_s
        base = _session.share(_core.prefix_store("smdp", base), launch, deadline)
    elif launch.world_size == 1:
        base = _core.memory_store()
    else:
        if launch.master_addr is None or not launch.master_port:
            raise ConfigError(
                "[smdp] SMDP_MASTER_ADDR and SMDP_MASTER_PORT are not set, and the launcher names no master;"
                " set both to where rank 0 runs and a free port there."
            )
        if launch.rank == 0:
            warn_if_elsewhere(launch.master_addr)
        else:
            check_master(launch.master_addr, launch.source, config.init_timeout_s)
        base = _session.open_session(launch, options.get("secret", ""), config.init_timeout_s)
    limit = config.timeout_s if timeout is None else timeout
    _world = Group(_core.Group(base, launch.rank, launch.world_size, "world", limit, options), limit)
    _owner = os.getpid()
    watch_end()
    return _world


def is_initialized() -> bool:
    """True between init() and shutdown(), in the process that called init(); False in its forked children."""
    return _world is not None and _owner == os.getpid()


def world() -> Group:
    """The group of all ranks.

    Raises:
        ConfigError: Before init().
    """
    if _world is None:
        raise ConfigError("[smdp] smdp is not initialised in this process; call smdp.init() first.")
    return _world


def rank() -> int:
    """Rank of this process in the world."""
    return world().rank


def size() -> int:
    """Number of ranks in the world."""
    return world().size


def local_rank() -> int:
    """Index of this process among the ranks of its host."""
    return world().local_rank


def local_size() -> int:
    """Number of ranks on this host."""
    return world().local_size


def offer(group: Any) -> None:
    """Let a plugin's group over all ranks, whose `core` is the core's, stand for the world without init()."""
    _offered[:] = [one for one in _offered if one() is not None]
    _offered.append(weakref.ref(group))


def any_core() -> _core.Group:
    """Give the core's group of all ranks: init()'s, or else a plugin's that is still open.

    Raises:
        ConfigError: There is none.
    """
    if _world is not None:
        return _world.core
    for one in _offered:
        group = one()
        if group is not None and not isinstance(group.core.error(), ClosedError):
            core: _core.Group = group.core
            return core
    raise ConfigError(
        "[smdp] this process has no group over all ranks; call smdp.init(), smdp.tensorflow.init(),"
        ' torch.distributed.init_process_group("smdp"), or, where that has another backend,'
        ' torch.distributed.new_group(backend="smdp") first.'
    )


def shutdown() -> None:
    """Leaves the world. Safe to call twice, or without init(); in a rank's forked child it does nothing.

    All ranks may init() again after it, in any order. Rank 0 keeps its store's port until its process ends.
    """
    global _world
    for call in _at_shutdown:
        call()
    if _world is not None and _owner == os.getpid():
        _world.shutdown()
        _world = None


# In what a rank raises because another one has ended. Launchers name the rank that ends first, and that one
# may still be on its way out: this one ends after it, or is stopped.
_LEFT = "has left the group"
_BEHIND_S = 1.0


# What a process of multiprocessing's ends by, which Python does not tell its atexit.
_failure: BaseException | None = None
# The text of the sys.exit() that ends this process, which Python does not tell it either.
_exit_text: str | None = None
_at_end: list[Callable[[], None]] = []
# What shutdown() calls first.
_at_shutdown: list[Callable[[], None]] = []
_watched = 0  # the process of multiprocessing's whose end is


def why_it_ends() -> str:
    """Returns the exception that ends this program, as other ranks are told it; empty if it ends well."""
    failure = getattr(sys, "last_value", None) or _failure
    if isinstance(failure, SystemExit):
        return f"it called sys.exit({failure.code!r})" if isinstance(failure.code, str) else ""
    if failure is not None:
        return f"it raised {type(failure).__name__}: {failure}"
    return "" if _exit_text is None else f"it called sys.exit({_exit_text!r})"


class _ExitText(str):
    """A text that sys.exit() got. It is noted when Python ends the process by it, and not where it is caught.

    Python then prints the text, and runs what atexit has once the exception is gone.
    """

    def __str__(self) -> str:
        global _exit_text
        text = super().__str__()
        try:
            sys._getframe(1)
        except ValueError:  # no function is running any more, so this is Python itself
            _exit_text = text
        return text

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (super().__str__(),)


def _note_exit_text() -> None:
    """Makes sys.exit() pass a text on as _ExitText."""
    if hasattr(sys.exit, "__wrapped__"):
        return
    exit_of_python = sys.exit

    @functools.wraps(exit_of_python)
    def noting(status: Any = None, /) -> NoReturn:
        exit_of_python(_ExitText(status) if isinstance(status, str) else status)

    sys.exit = noting


def at_shutdown(call: Callable[[], None]) -> Callable[[], None]:
    """Runs this at the beginning of every shutdown()."""
    _at_shutdown.append(call)
    return call


def at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Run this once before the process ends, also where Python does not; the last one given runs first."""
    done = 0

    @functools.wraps(call)
    def once() -> None:
        nonlocal done
        if done != os.getpid():
            done = os.getpid()
            call()

    _at_end.append(once)
    atexit.register(once)
    return once


def watch_end() -> None:
    """Prepares for the end of this process: why it comes is noted, and what at_end() got runs.

    A process that multiprocessing has forked has no atexit.
    """
    global _watched
    _note_exit_text()
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched == os.getpid():
        return
    from multiprocessing.util import Finalize

    _watched = os.getpid()
    Finalize(None, _end_of_child, exitpriority=0)


def _end_of_child() -> None:
    global _failure
    _failure = sys.exc_info()[1]
    if isinstance(_failure, SystemExit):  # torch's mp.spawn() has stored the exception, and exits with 1
        _failure = _failure.__context__ if _failure.code else None
    if (
        not has_other_threads()
    ):  # else Python waits for those threads first, which may be in the middle of a step
        for call in reversed(_at_end):
            call()


@at_end
def _leave() -> None:
    """Says goodbye to all groups, and why: others report it if they still wait for this rank."""
    why = why_it_ends()
    _core.shutdown_all(why)
    _session.close()
    # Python cannot end threads that are in the core: they come out now, or never.
    _core.end()
    deadline = time.monotonic() + _BEHIND_S
    while _core.threads_inside() and time.monotonic() < deadline:
        time.sleep(0.001)
    if _LEFT in why:
        time.sleep(_BEHIND_S)
