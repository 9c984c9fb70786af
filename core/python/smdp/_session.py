"""The store by which the ranks of the world meet, and a part of it of its own for each init().

Rank 0 serves it until its process ends, as groups of an earlier world may hold it, and with it the port. So
a rank that calls init() again, here or in a process that was started anew, may come before rank 0 does, and
must not read what that world has left there.
"""

from __future__ import annotations

import os
import secrets
import time
from typing import NamedTuple

from . import _core
from ._errors import ConfigError, TimeoutError
from .environments import Launch

_NOW = "session"


class _Served(NamedTuple):
    """What rank 0 serves."""

    place: tuple[int, str, int, str]
    store: _core.Store


_served: _Served | None = None


def open_session(launch: Launch, secret: str, timeout_s: float) -> _core.Store:
    """Serve rank 0's store, or connect to it; give the part of it that is this init()'s alone."""
    # Without a secret, the job's name still keeps out ranks of another job that came to this port.
    key = secret or (f"job {launch.job}" if launch.job else "")
    deadline = time.monotonic() + timeout_s
    return share(
        _serve(launch, key, timeout_s) if launch.rank == 0 else _connect(launch, key, timeout_s),
        launch,
        deadline,
    )


def share(store: _core.Store, launch: Launch, deadline: float) -> _core.Store:
    """Give the part of a store that is this init()'s alone.

    Args:
        store: Where all ranks meet.
        launch: Who this one is.
        deadline: Of time.monotonic(), until which rank 0 may come.

    Raises:
        TimeoutError: Rank 0 has not.
    """
    session = _begin(store) if launch.rank == 0 else _join(store, launch, deadline)
    return _core.prefix_store(session, store)


def close() -> None:
    """Serve no longer."""
    global _served
    _served = None


def _next(session: str) -> str:
    return f"after {session}"


def _claim(session: str, rank: int) -> str:
    """Name the key that says that a process of this rank is in the session, well or not: it ends with it."""
    return f"claim {session} {rank}"


def _begin(store: _core.Store) -> str:
    before = store.get(_NOW, 0.0).decode() if store.check(_NOW) else ""
    session = secrets.token_hex(8)
    store.set(_NOW, session.encode())
    store.set(_next(before), session.encode())
    return session


def _join(store: _core.Store, launch: Launch, deadline: float) -> str:
    begin = time.monotonic()
    limit = max(1.0, deadline - begin)  # rank 0's store may have been there just in time
    try:
        session = store.get(_NOW, limit).decode()
    except TimeoutError:
        raise TimeoutError(
            f"[smdp] rank {launch.rank} of {launch.world_size}: rank 0 has not called smdp.init() after"
            f" {limit:.3g} s: it is not at this store. Look at why it did not start;"
            " SMDP_INIT_TIMEOUT sets the wait."
        ) from None
    while store.check(_claim(session, launch.rank)):
        try:
            session = store.get(_next(session), max(0.0, begin + limit - time.monotonic())).decode()
        except TimeoutError:
            raise TimeoutError(
                f"[smdp] rank {launch.rank} of {launch.world_size}: this is another smdp.init() of this rank,"
                " here or in a process before this one that ended or still runs, but rank 0 has not called it"
                f" again after {time.monotonic() - begin:.3g} s. All ranks must call smdp.shutdown() and"
                " smdp.init() equally often, and are started anew together; SMDP_INIT_TIMEOUT sets the wait."
            ) from None
    store.set(_claim(session, launch.rank), b"")
    return session


def _serve(launch: Launch, key: str, timeout_s: float) -> _core.Store:
    global _served
    place = (os.getpid(), launch.master_addr, launch.master_port, key)
    if _served is None or _served.place != place:
        close()
        store = _core.tcp_store(launch.master_addr, launch.master_port, True, key.encode(), timeout_s)
        _served = _Served(place, store)
    return _served.store


def _connect(launch: Launch, key: str, timeout_s: float) -> _core.Store:
    close()  # it may have been rank 0
    try:
        return _core.tcp_store(launch.master_addr, launch.master_port, False, key.encode(), timeout_s)
    except TimeoutError as error:
        reason = str(error).removeprefix("[smdp] ")
        raise TimeoutError(
            f"[smdp] rank {launch.rank} of {launch.world_size} does not reach rank 0's store: {reason}"
        ) from None
    except ConfigError as error:
        name = f"{launch.source} job {launch.job}" if launch.job else f"this job ({launch.source})"
        raise ConfigError(
            f"[smdp] rank {launch.rank} of {launch.world_size}: what listens at {launch.master_addr}, port "
            f"{launch.master_port}, is not rank 0 of {name}, but another job or program; set "
            "SMDP_MASTER_PORT to another port on all ranks of one, and one SMDP_SECRET, if any, on all ranks "
            f"({error})"
        ) from error
