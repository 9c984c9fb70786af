"""Separates the ranks of this attempt from earlier attempts, whose keys may still be in torch's store.

torchrun keeps one store over all restarts, and `init_process_group` may be called again on the same store.
Rank 0 therefore draws a new session and waits until every rank has answered with its own token. A rank
accepts a session only when rank 0 has repeated its token, and answers again when the session changes.

A rank that knows why the group cannot be created raises an objection, and rank 0 passes the reason on to all
ranks. Reading from a session that rank 0 has abandoned, or objecting to it, has no effect.
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
    """Waits until all ranks have joined, and returns a prefix for keys that no earlier attempt has used.

    Args:
        store: The store that all ranks use.
        rank: The rank of this process in the new group.
        size: The number of ranks in the new group.
        group: The name of the new group.
        timeout_s: The longest time to wait for all ranks, in seconds.
        parent: A group that knows which ranks are gone, or None.
        ranks: The ranks of the new group by their numbers in `parent`.

    Raises:
        smdp.ConfigError: The store belongs to a different job, two processes have the same rank, or ranks
            were started with different world sizes.
        smdp.TimeoutError: Not all ranks joined in time. The message names the missing ranks.
        smdp.PeerLostError: A rank, or the process that holds the store, ended before all ranks had joined.
        smdp.MismatchError: A rank waits for this rank in a different group, or creates this group with
            different ranks.
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
                f"[smdp] rank {rank} of {size}: lost the connection to the store{start.at} while the ranks of"
                f" group {group!r} were joining ({str(error).splitlines()[0]}). Rank 0, or the launcher that"
                " holds the store, has ended. Read its output.",
                [0] if rank else [],  # rank 0 of this group, which may have a different rank in others
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
            if start.place:  # without it, timeout= does not limit the start
                where, limit = f"{where} and {start.place}", ", or timeout=,"
        failure = MeetingFailure(
            TimeoutError.__name__,
            f"after {timeout_s:g} s not all ranks of group {group!r} have joined: joined"
            f" {shown_ranks([0, *came])}; missing {shown_ranks(missing)} of {size}. Check that the missing"
            f" ranks are running{where}. SMDP_INIT_TIMEOUT{limit} sets the wait.",
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
    """Sends the reason of the failure to the ranks that have joined, and waits briefly until they read it."""
    for token in tokens:
        store.set(keys.failed(session, token), failure.encode())
    store.set(keys.failed(session), failure.encode())  # for ranks that come too late
    # This program may end now, and the store ends with it.
    _wait(store, (keys.read(session, token) for token in tokens), _FAREWELL_S, meeting)


def _wait(
    store: BoundedStore,
    names: Iterable[str],
    timeout_s: float,
    meeting: _core.Meeting,
    end: str | None = None,
) -> None:
    """Waits until all keys exist, `end` exists, or the timeout has expired.

    The wait() of a torch store blocks Python's signal handlers, and logs a warning when it times out.
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
    """A rank other than 0 of a new group.

    Args:
        store: The store that all ranks use.
        rank: The rank of this process.
        size: The number of ranks that this process expects.
        group: The name of the group.
        meeting: Reports other reasons to end the wait.
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
        self._session = ""  # the session that this rank answered last
        self._size_of_leader = size
        self._was_taken = False

    def follow(self, timeout_s: float) -> str:
        """Waits for rank 0 and returns the prefix."""
        # Rank 0 gives up first, because its error names the missing ranks.
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
        except BaseException as error:  # Ctrl-C, or an error raised by a signal handler
            text = (
                f"rank {self._rank} left while the ranks of group {self._group!r} were joining:"
                f" {type(error).__name__}"
            )
            self._object(MeetingFailure(PeerLostError.__name__, text, [self._rank]))
            raise
        raise self._late(wait_s)

    def _answer(self, session: str) -> None:
        """Answers a session with this rank's token, unless it has answered this session already."""
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
        """Returns whether rank 0 has announced that all ranks have joined.

        Raises:
            smdp.SmdpError: The group cannot be created.
        """
        session, token = self._session, self._token
        if self._store.check([keys.go(session, token)]):
            return True
        if self._store.check([keys.failed(session, token)]):
            failure = MeetingFailure.decode(self._store.get(keys.failed(session, token)))
            with contextlib.suppress(DistNetworkError):  # rank 0 may have ended meanwhile
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
        with contextlib.suppress(DistNetworkError):  # then all ranks notice that rank 0 is gone
            self._store.set(keys.objection(self._session), failure.encode())

    def _other_size(self) -> MeetingFailure:
        if self._is_start:
            kind = ConfigError.__name__
            text = (
                f"rank {self._rank} was started with world size {self._size}, but rank 0 with "
                f"{self._size_of_leader}. Start all ranks with the same world size."
            )
        else:
            kind = MismatchError.__name__
            text = (
                f"rank {self._rank} creates group {self._group!r} with {self._size} ranks, but rank 0 with "
                f"{self._size_of_leader}. Call new_group() with the same ranks on all ranks."
            )
        return MeetingFailure(kind, text, token=self._token)

    def _same_rank(self) -> MeetingFailure:
        return MeetingFailure(
            ConfigError.__name__,
            f"two processes were started as rank {self._rank} of {self._size}. Give each process a different "
            "RANK.",
        )

    def _late(self, wait_s: float) -> SmdpError:
        """Returns the error for a rank 0 that has not answered."""
        name = keys.failed(self._session)
        # Checked only now, because it may belong to an earlier attempt while rank 0 is still starting.
        if self._session and self._store.check([name]):
            return MeetingFailure.decode(self._store.get(name)).error(self._rank, self._size, "too late: ")
        if self._size_of_leader != self._size:
            return self._other_size().error(self._rank, self._size)
        other = f", or another process has joined as rank {self._rank}" if self._was_taken else ""
        return TimeoutError(
            f"[smdp] rank {self._rank} of {self._size}: rank 0 of group {self._group!r} has not joined after "
            f"{wait_s:g} s{other}. Check why it did not start. SMDP_INIT_TIMEOUT sets the wait."
        )


def _check_job(theirs: str, rank: int, size: int) -> None:
    """Raises ConfigError if rank 0 belongs to a different job, provided that both jobs have names."""
    if theirs == start.job or not theirs or not start.job:
        return
    cure = "Set MASTER_PORT to a different port" if start.place else "Use a different store"
    raise ConfigError(
        f"[smdp] rank {rank} of {size}: the store{start.at} belongs to a different job, {theirs!r}; this job"
        f" is {start.job!r}. {cure} on all ranks of one of the jobs."
    )
