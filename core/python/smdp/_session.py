"""The store through which the ranks of the world find each other, with separate keys for each init().

Rank 0 serves the store until its process ends, because groups of an earlier world may still use it and its
port. A rank that calls init() again, in the same process or in a restarted one, may therefore reach the store
before rank 0 calls init(), and must not read the keys of the earlier world.
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
    """The store that rank 0 serves, with the place it was created for."""

    place: tuple[int, str, int, str]
    store: _core.Store


_served: _Served | None = None


def open_session(launch: Launch, secret: str, timeout_s: float) -> _core.Store:
    """Serves the store on rank 0, connects to it on other ranks, and returns this init()'s part of it."""
    # Without a secret, the job's name still keeps out the ranks of another job that use the same port.
    key = secret or (f"job {launch.job}" if launch.job else "")
    deadline = time.monotonic() + timeout_s
    return share(
        _serve(launch, key, timeout_s) if launch.rank == 0 else _connect(launch, key, timeout_s),
        launch,
        deadline,
    )


def share(store: _core.Store, launch: Launch, deadline: float) -> _core.Store:
    """Returns the part of a store that belongs to this init() alone.

    Args:
        store: The store that all ranks share.
        launch: This process's rank.
        deadline: Time, on the clock of time.monotonic(), until which to wait for rank 0.

    Raises:
        TimeoutError: Rank 0 did not call init() in time.
    """
    session = _begin(store) if launch.rank == 0 else _join(store, launch, deadline)
    return _core.prefix_store(session, store)


def close() -> None:
    """Stops serving the store."""
    global _served
    _served = None


def _next(session: str) -> str:
    return f"after {session}"


def _claim(session: str, rank: int) -> str:
    """Returns the key by which a process of this rank marks that it has joined the session."""
    return f"claim {session} {rank}"


def _begin(store: _core.Store) -> str:
    before = store.get(_NOW, 0.0).decode() if store.check(_NOW) else ""
    session = secrets.token_hex(8)
    store.set(_NOW, session.encode())
    store.set(_next(before), session.encode())
    return session


def _join(store: _core.Store, launch: Launch, deadline: float) -> str:
    begin = time.monotonic()
    limit = max(1.0, deadline - begin)  # rank 0's store may have appeared just before the deadline
    try:
        session = store.get(_NOW, limit).decode()
    except TimeoutError:
        raise TimeoutError(
            f"[smdp] rank {launch.rank} of {launch.world_size}: rank 0 has not joined through this store"
            f" within {limit:.3g} s. Check whether rank 0 started and called smdp.init();"
            " SMDP_INIT_TIMEOUT sets how long to wait."
        ) from None
    while store.check(_claim(session, launch.rank)):
        try:
            session = store.get(_next(session), max(0.0, begin + limit - time.monotonic())).decode()
        except TimeoutError:
            raise TimeoutError(
                f"[smdp] rank {launch.rank} of {launch.world_size}: this rank has called smdp.init() before,"
                " in this process or in an earlier one, but rank 0 has not called it again within"
                f" {time.monotonic() - begin:.3g} s. All ranks must call smdp.init() and smdp.shutdown() the"
                " same number of times, and must be restarted together; SMDP_INIT_TIMEOUT sets how long to"
                " wait."
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
    close()  # this process may have been rank 0 of an earlier world
    try:
        return _core.tcp_store(launch.master_addr, launch.master_port, False, key.encode(), timeout_s)
    except TimeoutError as error:
        reason = str(error).removeprefix("[smdp] ")
        raise TimeoutError(
            f"[smdp] rank {launch.rank} of {launch.world_size} cannot reach rank 0's store: {reason}"
        ) from None
    except ConfigError as error:
        name = f"{launch.source} job {launch.job}" if launch.job else f"this job ({launch.source})"
        raise ConfigError(
            f"[smdp] rank {launch.rank} of {launch.world_size}: another job or program, not rank 0 of {name},"
            f" is listening at {launch.master_addr}, port {launch.master_port}. Set SMDP_MASTER_PORT to a"
            " different port on all ranks of one of the jobs; if you set SMDP_SECRET, use the same value on"
            f" all ranks ({error})"
        ) from error
