"""Tell the ranks of this attempt from those of earlier ones, whose keys may still be in torch's store.

torchrun keeps one store over all restarts, and `init_process_group` may be called again on the same store.
So rank 0 draws a fresh session and waits until every rank has answered with a token of its own. A rank
believes in a session only once rank 0 has repeated that token, and answers anew when the session changes.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Sequence

from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import Store

from smdp import _core
from smdp._errors import ConfigError, PeerLostError, TimeoutError
from smdp._shown import shown_ranks
from smdp.torch.bounded_store import BoundedStore

_SESSION = "smdp/session"
_JOB = "smdp/job"
_POLL_S = 0.002
_POLL_MAX_S = 0.05
_FAREWELL_S = 3.0


_job = ""


def set_job(name: str) -> None:
    """Take the launcher's name of the job, the same on all its ranks; empty if it has none."""
    global _job
    _job = name


def open_session(
    store: Store,
    rank: int,
    size: int,
    group: str,
    timeout_s: float,
    parent: _core.Group | None = None,
    ranks: Sequence[int] = (),
) -> str:
    """Give a prefix for keys that no earlier attempt has used; returns when all ranks have come.

    Args:
        store: Where they meet.
        rank: This one's number in the new group.
        size: Number of its ranks.
        group: Its name.
        timeout_s: How long to wait for all.
        parent: A group that knows who is gone. Default: nobody does.
        ranks: The new group's ranks, by their numbers in `parent`.

    Raises:
        smdp.ConfigError: The store belongs to another job.
        smdp.TimeoutError: Not all came in time; the message says who did.
        smdp.PeerLostError: A rank, or the process that holds the store, ended before all had come.
        smdp.MismatchError: Another one waits for this one in another group, and will not come.
    """
    with _core.Meeting(group, size, parent, list(ranks)) as meeting:
        try:
            with BoundedStore(store, timeout_s, rank, size, group, meeting.check) as bounded:
                if rank == 0:
                    return _lead(bounded, size, group, timeout_s, meeting)
                return _follow(bounded, rank, size, group, timeout_s, meeting)
        except DistNetworkError as error:
            meeting.check(has_failed=True)
            raise PeerLostError(
                f"[smdp] rank {rank} of {size}: the store at MASTER_ADDR:MASTER_PORT={_where()} went away "
                f"while the ranks of group {group!r} met ({str(error).splitlines()[0]}): rank 0, or the "
                "launcher that holds the store, has ended; read its output",
                [0] if rank else [],  # of this group; in another one rank 0 may be somebody else
            ) from error


def _lead(store: BoundedStore, size: int, group: str, timeout_s: float, meeting: _core.Meeting) -> str:
    session = secrets.token_hex(8)
    store.set(_JOB, _job)
    store.set(_SESSION, session)
    others = range(1, size)
    _wait(store, (_hello(session, rank) for rank in others), timeout_s, meeting)
    missing = [rank for rank in others if not store.check([_hello(session, rank)])]
    if missing:
        came = [rank for rank in range(size) if rank not in missing]
        text = (
            f"after {timeout_s:g} s not all ranks of group {group!r} have come: "
            f"here are {shown_ranks(came)}; missing are {shown_ranks(missing)} of {size}. "
            "Look at why those did not start; SMDP_INIT_TIMEOUT sets the wait."
        )
        tokens = [store.get(_hello(session, rank)).decode() for rank in came[1:]]
        for token in tokens:
            store.set(_failed(session, token), text)
        store.set(_failed(session), text)  # for who comes too late
        # This program may end now, and the store with it.
        _wait(store, (_read(session, token) for token in tokens), _FAREWELL_S, meeting)
        raise TimeoutError(f"[smdp] rank 0 of {size}: {text}")
    for rank in others:
        store.set(_go(session, store.get(_hello(session, rank)).decode()), "1")
    return f"smdp/{session}"


def _wait(store: BoundedStore, keys: Iterable[str], timeout_s: float, meeting: _core.Meeting) -> None:
    """Wait until all keys are there, at most so long.

    A store's own wait keeps signals from Python, and one that ends in vain writes a warning to the log.
    """
    deadline = time.monotonic() + timeout_s
    pause = _POLL_S
    for key in keys:
        while not store.check([key]):
            meeting.check()
            if time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_MAX_S)


def _follow(
    store: BoundedStore, rank: int, size: int, group: str, timeout_s: float, meeting: _core.Meeting
) -> str:
    token = secrets.token_hex(8)
    # Rank 0 gives up first and says who is missing.
    wait_s = timeout_s + 5.0
    deadline = time.monotonic() + wait_s
    answered = ""
    pause = _POLL_S
    while time.monotonic() < deadline:
        meeting.check()
        if store.check([_SESSION]):
            _check_job(store.get(_JOB).decode(), rank, size)
            session = store.get(_SESSION).decode()
            if session != answered:
                store.set(_hello(session, rank), token)
                answered = session
            if store.check([_go(session, token)]):
                return f"smdp/{session}"
            if store.check([_failed(session, token)]):
                failure = store.get(_failed(session, token)).decode()
                with contextlib.suppress(DistNetworkError):  # it may have ended at that
                    store.set(_read(session, token), "1")
                raise TimeoutError(f"[smdp] rank {rank} of {size}: {failure}")
        time.sleep(pause)
        pause = min(pause * 1.5, _POLL_MAX_S)
    # Not at once: it may be an earlier attempt's, and rank 0 of this one on its way.
    if answered and store.check([_failed(answered)]):
        raise TimeoutError(f"[smdp] rank {rank} of {size}: too late: {store.get(_failed(answered)).decode()}")
    raise TimeoutError(
        f"[smdp] rank {rank} of {size}: rank 0 of group {group!r} has not come after {wait_s:g} s. "
        "Look at why it did not start; SMDP_INIT_TIMEOUT sets the wait."
    )


def _check_job(theirs: str, rank: int, size: int) -> None:
    """Raise unless rank 0 is of this job; without names nobody can tell."""
    if theirs == _job or not theirs or not _job:
        return
    raise ConfigError(
        f"[smdp] rank {rank} of {size}: the store at MASTER_ADDR:MASTER_PORT={_where()} is that of "
        f"another job, {theirs!r}, and this one is {_job!r}; set MASTER_PORT to another port on all ranks "
        "of one of them"
    )


def _where() -> str:
    return f"{os.environ.get('MASTER_ADDR', '')}:{os.environ.get('MASTER_PORT', '')}"


def _hello(session: str, rank: int) -> str:
    return f"smdp/{session}/hello/{rank}"


def _go(session: str, token: str) -> str:
    return f"smdp/{session}/go/{token}"


def _failed(session: str, token: str = "") -> str:
    return f"smdp/{session}/failed/{token}"


def _read(session: str, token: str) -> str:
    return f"smdp/{session}/read/{token}"
