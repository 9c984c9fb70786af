"""Separates the ranks of this attempt from earlier ones, whose keys may still be in torch's store.

torchrun keeps one store over all restarts, and `init_process_group` may be called again on the same store.
So rank 0 draws a fresh session and waits until every rank has answered with a token of its own. A rank
believes in a session only once rank 0 has repeated that token, and answers anew when the session changes.

A rank that knows why the group cannot be made objects, and rank 0 passes the reason on to all. What a rank
reads in a session that rank 0 has given up has no effect, and neither does its objection.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Iterable, Sequence

from torch.distributed import DistNetworkError
from torch.distributed.distributed_c10d import Store

from smdp import _core
from smdp._errors import ConfigError, MismatchError, PeerLostError, SmdpError, TimeoutError
from smdp._shown import shown_ranks
from smdp.torch.rendezvous import session_keys as keys
from smdp.torch.rendezvous.bounded_store import BoundedStore
from smdp.torch.rendezvous.meeting_failure import MeetingFailure
from smdp.torch.rendezvous.start import start

_POLL_S = 0.002
_POLL_MAX_S = 0.05
_FAREWELL_S = 3.0


def open_session(
    store: Store,
    rank: int,
    size: int,
    group: str,
    timeout_s: float,
    parent: _core.Group | None = None,
    ranks: Sequence[int] = (),
) -> str:
    """Returns a prefix for keys that no earlier attempt has used, when all ranks have come.

    Args:
        store: Where they meet.
        rank: This one's number in the new group.
        size: Number of its ranks.
        group: Its name.
        timeout_s: How long to wait for all.
        parent: A group that knows which ranks are gone. Default: none.
        ranks: The new group's ranks, by their numbers in `parent`.

    Raises:
        smdp.ConfigError: The store belongs to another job, two processes have the same rank, or ranks were
            started with different world sizes.
        smdp.TimeoutError: Not all came in time; the message says who did.
        smdp.PeerLostError: A rank, or the process that holds the store, ended before all had come.
        smdp.MismatchError: Another one waits for this one in another group, and will not come; or makes this
            group of other ranks.
    """
    with _core.Meeting(group, size, parent, list(ranks)) as meeting:
        try:
            with BoundedStore(store, timeout_s, rank, size, group, meeting.check) as bounded:
                if rank == 0:
                    return _lead(bounded, size, group, timeout_s, meeting, is_start=parent is None)
                return _Follower(bounded, rank, size, group, meeting, is_start=parent is None).follow(
                    timeout_s
                )
        except DistNetworkError as error:
            meeting.check(has_failed=True)
            raise PeerLostError(
                f"[smdp] rank {rank} of {size}: the store{start.at} went away "
                f"while the ranks of group {group!r} met ({str(error).splitlines()[0]}): rank 0, or the "
                "launcher that holds the store, has ended; read its output",
                [0] if rank else [],  # of this group; in another one rank 0 may be somebody else
            ) from error


def _lead(
    store: BoundedStore, size: int, group: str, timeout_s: float, meeting: _core.Meeting, *, is_start: bool
) -> str:
    session = secrets.token_hex(8)
    store.set(keys.JOB, start.job)
    store.set(keys.SIZE, str(size))
    store.set(keys.SESSION, session)
    others = range(1, size)
    _wait(store, (keys.hello(session, rank) for rank in others), timeout_s, meeting, keys.objection(session))
    failure = None
    came = list(others)
    if store.check([keys.objection(session)]):
        failure = MeetingFailure.decode(store.get(keys.objection(session)))
        came = [rank for rank in others if store.check([keys.hello(session, rank)])]
    elif missing := [rank for rank in others if not store.check([keys.hello(session, rank)])]:
        came = [rank for rank in others if rank not in missing]
        where = limit = ""
        if is_start:
            where = ", with the same world size"
            if start.place:  # else timeout= does not count for the start
                where, limit = f"{where} and {start.place}", ", or timeout=,"
        failure = MeetingFailure(
            TimeoutError.__name__,
            f"after {timeout_s:g} s not all ranks of group {group!r} have come: "
            f"here are {shown_ranks([0, *came])}; missing are {shown_ranks(missing)} of {size}. "
            f"Are those running{where}? SMDP_INIT_TIMEOUT{limit} sets the wait.",
        )
    tokens = [store.get(keys.hello(session, rank)).decode() for rank in came]
    if failure is not None:
        if failure.token and failure.token not in tokens:
            tokens.append(failure.token)
        _tell(store, session, failure, tokens, meeting)
        raise failure.error(0, size)
    for token in tokens:
        store.set(keys.go(session, token), "1")
    return f"smdp/{session}"


def _tell(
    store: BoundedStore, session: str, failure: MeetingFailure, tokens: Sequence[str], meeting: _core.Meeting
) -> None:
    """Sends the reason of the failure to the ranks that have come, and waits briefly for them to read it."""
    for token in tokens:
        store.set(keys.failed(session, token), failure.encode())
    store.set(keys.failed(session), failure.encode())  # for who comes too late
    # This program may end now, and the store with it.
    _wait(store, (keys.read(session, token) for token in tokens), _FAREWELL_S, meeting)


def _wait(
    store: BoundedStore,
    names: Iterable[str],
    timeout_s: float,
    meeting: _core.Meeting,
    end: str | None = None,
) -> None:
    """Waits until all keys are there, or `end` is; at most so long.

    A store's own wait keeps signals from Python, and one that ends in vain writes a warning to the log.
    """
    deadline = time.monotonic() + timeout_s
    pause = _POLL_S
    for name in names:
        while not store.check([name]):
            meeting.check()
            if time.monotonic() > deadline or (end is not None and store.check([end])):
                return
            time.sleep(pause)
            pause = min(pause * 1.5, _POLL_MAX_S)


class _Follower:
    """A rank other than 0 of a group that is being made.

    Args:
        store: Where the ranks meet.
        rank: This one.
        size: Number of ranks, as this one believes.
        group: The group's name.
        meeting: Knows what else may end the wait.
        is_start: Whether this is the default group.
    """

    def __init__(
        self, store: BoundedStore, rank: int, size: int, group: str, meeting: _core.Meeting, *, is_start: bool
    ) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        self._group = group
        self._meeting = meeting
        self._is_start = is_start
        self._token = secrets.token_hex(8)
        self._session = ""  # the one that was answered last
        self._size_of_leader = size
        self._was_taken = False

    def follow(self, timeout_s: float) -> str:
        """Waits for rank 0 and returns the prefix."""
        # Rank 0 gives up first and says who is missing.
        wait_s = timeout_s + 5.0
        deadline = time.monotonic() + wait_s
        pause = _POLL_S
        try:
            while time.monotonic() < deadline:
                self._meeting.check()
                if self._store.check([keys.SESSION]):
                    self._answer(self._store.get(keys.SESSION).decode())
                    if self._may_go():
                        return f"smdp/{self._session}"
                time.sleep(pause)
                pause = min(pause * 1.5, _POLL_MAX_S)
        except (SmdpError, DistNetworkError):
            raise
        except BaseException as error:  # Ctrl-C, or what else a signal's handler raises
            text = (
                f"rank {self._rank} left while the ranks of group {self._group!r} met: {type(error).__name__}"
            )
            self._object(MeetingFailure(PeerLostError.__name__, text, [self._rank]))
            raise
        raise self._late(wait_s)

    def _answer(self, session: str) -> None:
        """Says that this rank has come, unless the session is the one that it has answered."""
        if session == self._session:
            return
        _check_job(self._store.get(keys.JOB).decode(), self._rank, self._size)
        self._session = session
        self._size_of_leader = int(self._store.get(keys.SIZE))
        if self._size_of_leader != self._size:
            self._object(self._other_size())
        name = keys.hello(session, self._rank)
        self._was_taken = self._store.check([name])
        self._store.set(name, self._token)

    def _may_go(self) -> bool:
        """Whether rank 0 says that all have come.

        Raises:
            smdp.SmdpError: The meeting has failed.
        """
        session, token = self._session, self._token
        if self._store.check([keys.go(session, token)]):
            return True
        if self._store.check([keys.failed(session, token)]):
            failure = MeetingFailure.decode(self._store.get(keys.failed(session, token)))
            with contextlib.suppress(DistNetworkError):  # it may have ended at that
                self._store.set(keys.read(session, token), "1")
            raise failure.error(self._rank, self._size)
        if self._store.get(keys.hello(session, self._rank)).decode() != token:
            failure = self._same_rank()
            self._object(failure)
            raise failure.error(self._rank, self._size)
        return False

    def _object(self, failure: MeetingFailure) -> None:
        if not self._session:
            return
        with contextlib.suppress(DistNetworkError):  # then all know that rank 0 is gone
            self._store.set(keys.objection(self._session), failure.encode())

    def _other_size(self) -> MeetingFailure:
        if self._is_start:
            kind = ConfigError.__name__
            text = (
                f"rank {self._rank} was started with world size {self._size}, and rank 0 with "
                f"{self._size_of_leader}. Give all ranks the same world size."
            )
        else:
            kind = MismatchError.__name__
            text = (
                f"rank {self._rank} makes group {self._group!r} of {self._size} ranks, and rank 0 of "
                f"{self._size_of_leader}. Call new_group() with the same ranks everywhere."
            )
        return MeetingFailure(kind, text, token=self._token)

    def _same_rank(self) -> MeetingFailure:
        return MeetingFailure(
            ConfigError.__name__,
            f"two processes were started as rank {self._rank} of {self._size}. Give each process a different "
            "RANK.",
        )

    def _late(self, wait_s: float) -> SmdpError:
        """Returns why rank 0 has not answered."""
        name = keys.failed(self._session)
        # Not at once: it may be an earlier attempt's, and rank 0 of this one on its way.
        if self._session and self._store.check([name]):
            return MeetingFailure.decode(self._store.get(name)).error(self._rank, self._size, "too late: ")
        if self._size_of_leader != self._size:
            return self._other_size().error(self._rank, self._size)
        other = f", or another process has come as rank {self._rank}" if self._was_taken else ""
        return TimeoutError(
            f"[smdp] rank {self._rank} of {self._size}: rank 0 of group {self._group!r} has not come after "
            f"{wait_s:g} s{other}. Look at why it did not start; SMDP_INIT_TIMEOUT sets the wait."
        )


def _check_job(theirs: str, rank: int, size: int) -> None:
    """Raises ConfigError if rank 0 belongs to another job, as far as both jobs have names."""
    if theirs == start.job or not theirs or not start.job:
        return
    cure = "set MASTER_PORT to another port" if start.place else "use another store"
    raise ConfigError(
        f"[smdp] rank {rank} of {size}: the store{start.at} is that of "
        f"another job, {theirs!r}, and this one is {start.job!r}; {cure} on all ranks of one of them"
    )
