"""The world: the group of all ranks, which ``init`` creates once per process."""

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
# The process that created the world. A forked child inherits the variable, but cannot use the group.
_owner = 0
# Held while the world is created; a second thread waits and gets the same world. A forked child needs a new
# lock, because the parent may have held the old one.
_making = threading.RLock()
os.register_at_fork(after_in_child=lambda: globals().update(_making=threading.RLock()))
# Groups over all ranks that plugins have created, oldest first.
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
    """Joins the world and returns its group. Until shutdown(), further calls return the same group.

    Args:
        rank: This process's rank, 0 to world_size - 1. Default: the launcher's; see smdp.environments.
        world_size: Number of ranks. Default: the launcher's, or 1 without a launcher.
        local_rank: Index among the ranks of this host. It is only checked against the detected one.
        master_addr: Name or address of rank 0's machine. Default: SMDP_MASTER_ADDR, MASTER_ADDR, or the
            launcher's.
        master_port: Port of rank 0's store. Default: SMDP_MASTER_PORT, or as derived from the launcher.
        timeout: Time limit of an operation in seconds, at most 10^7. Default: SMDP_TIMEOUT, 30 minutes.
        store: An object with the methods of torch's stores (set, get, check, wait), through which ranks find
            each other. Default: a store that rank 0 serves at master_addr, master_port.

    Raises:
        ConfigError: An environment variable is invalid. The message has its name, value, and allowed values.
        ValueError: An argument is invalid, with the same details.
        TimeoutError: Not all ranks joined in time. The message lists the ranks that did and those that did
            not.
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
            f"[smdp] master_addr={master_addr!r} is not valid; allowed: a host name or address as a str."
        )
    if store is not None and not isinstance(store, _core.Store):
        lacks = [name for name in ("set", "get", "check", "wait") if not callable(getattr(store, name, None))]
        if lacks:
            raise ValueError(
                f"[smdp] store is a {type(store).__name__}, which has no {lacks[0]}(); allowed: an object"
                " with the methods of torch's stores (set, get, check, wait)."
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
                "[smdp] SMDP_MASTER_ADDR and SMDP_MASTER_PORT are not set, and the launcher does not name a"
                " master. Set them to the address of rank 0's machine and a free port on it."
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
    """Returns whether this process has joined the world: True from init() to shutdown().

    Forked children of the process get False.
    """
    return _world is not None and _owner == os.getpid()


def world() -> Group:
    """Returns the group of all ranks.

    Raises:
        ConfigError: init() has not been called.
    """
    if _world is None:
        raise ConfigError("[smdp] smdp is not initialized in this process; call smdp.init() first.")
    return _world


def rank() -> int:
    """Returns the rank of this process in the world."""
    return world().rank


def size() -> int:
    """Returns the number of ranks in the world."""
    return world().size


def local_rank() -> int:
    """Returns the index of this process among the ranks of its host."""
    return world().local_rank


def local_size() -> int:
    """Returns the number of ranks on this host."""
    return world().local_size


def offer(group: Any) -> None:
    """Registers a plugin's group over all ranks, which any_core() uses if init() was not called.

    Args:
        group: An object whose attribute `core` is a _core.Group. Only a weak reference to it is kept.
    """
    _offered[:] = [one for one in _offered if one() is not None]
    _offered.append(weakref.ref(group))


def any_core() -> _core.Group:
    """Returns the core's group of all ranks: the one from init(), or a plugin's that is still open.

    Raises:
        ConfigError: There is no such group.
    """
    if _world is not None:
        return _world.core
    for one in _offered:
        group = one()
        if group is not None and not isinstance(group.core.error(), ClosedError):
            core: _core.Group = group.core
            return core
    raise ConfigError(
        "[smdp] this process has no group over all ranks. First call smdp.init(), smdp.tensorflow.init(), or"
        ' torch.distributed.init_process_group("smdp"); if torch.distributed uses another backend, call'
        ' torch.distributed.new_group(backend="smdp").'
    )


def shutdown() -> None:
    """Leaves the world. It is safe to call this twice or without init().

    All ranks may call init() again afterward, in any order. Rank 0 keeps the port of its store until its
    process ends. In a forked child of a rank, this does nothing.
    """
    global _world
    for call in _at_shutdown:
        call()
    if _world is not None and _owner == os.getpid():
        _world.shutdown()
        _world = None


# Part of the error that a rank raises because another rank has ended. Launchers report the rank that exits
# first, so this rank waits to let the other one exit before it.
_LEFT = "has left the group"
_BEHIND_S = 1.0


# The exception that ends a multiprocessing child; Python does not expose it to atexit functions.
_failure: BaseException | None = None
# The argument of the sys.exit() that ends this process, which Python does not expose either.
_exit_text: str | None = None
_at_end: list[Callable[[], None]] = []
# Functions that shutdown() calls first.
_at_shutdown: list[Callable[[], None]] = []
_watched = 0  # pid of the multiprocessing child whose end is being watched


def why_it_ends() -> str:
    """Returns a description, for other ranks, of the exception that ends this program; empty if none does."""
    failure = getattr(sys, "last_value", None) or _failure
    if isinstance(failure, SystemExit):
        return f"it called sys.exit({failure.code!r})" if isinstance(failure.code, str) else ""
    if failure is not None:
        return f"it raised {type(failure).__name__}: {failure}"
    return "" if _exit_text is None else f"it called sys.exit({_exit_text!r})"


class _ExitText(str):
    """The argument of a sys.exit() call. It records itself when Python prints it as the process ends.

    If the program catches the SystemExit, nothing is recorded. Python runs atexit functions only after it has
    dropped the exception, so they cannot read the text themselves.
    """

    def __str__(self) -> str:
        global _exit_text
        text = super().__str__()
        try:
            sys._getframe(1)
        except ValueError:  # no Python function is running anymore, so the interpreter is the caller
            _exit_text = text
        return text

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (super().__str__(),)


def _note_exit_text() -> None:
    """Replaces sys.exit() with a function that wraps str arguments in _ExitText."""
    if hasattr(sys.exit, "__wrapped__"):
        return
    exit_of_python = sys.exit

    @functools.wraps(exit_of_python)
    def noting(status: Any = None, /) -> NoReturn:
        exit_of_python(_ExitText(status) if isinstance(status, str) else status)

    sys.exit = noting


def at_shutdown(call: Callable[[], None]) -> Callable[[], None]:
    """Registers a function that every shutdown() calls first. Can be used as a decorator."""
    _at_shutdown.append(call)
    return call


def at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Registers a function that runs once before the process ends, also in multiprocessing children.

    The function registered last runs first. Can be used as a decorator.
    """
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
    """Prepares this process to record why it ends and to run the functions registered with at_end().

    Processes forked by multiprocessing do not run atexit functions, so they need a finalizer.
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
    if isinstance(_failure, SystemExit):  # torch's mp.spawn() stores the exception and exits with 1
        _failure = _failure.__context__ if _failure.code else None
    if not has_other_threads():  # Python waits for other threads first, which may be in the middle of a step
        for call in reversed(_at_end):
            call()


@at_end
def _leave() -> None:
    """Leaves all groups with the reason, which other ranks report if they still wait for this rank."""
    why = why_it_ends()
    _core.shutdown_all(why)
    _session.close()
    # Python cannot end threads that are inside the core, so make them return now.
    _core.end()
    deadline = time.monotonic() + _BEHIND_S
    while _core.threads_inside() and time.monotonic() < deadline:
        time.sleep(0.001)
    if _LEFT in why:
        time.sleep(_BEHIND_S)
