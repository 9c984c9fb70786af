"""The channel of the first host, to which all other hosts connect."""

from __future__ import annotations

import contextlib
import dataclasses
import hmac
import secrets
import select
import socket
import time
from typing import Any

from smdp import ConfigError
from smdp.sagemaker.connection import Connection
from smdp.sagemaker.failure import Failure
from smdp.sagemaker.host_channel import Hello, HostChannel

_HELLO_S = 10.0  # how long a new connection may take to send its hello
_DECIDE_S = 3.0  # how long to wait for a cause if only its consequences have been reported
_FINISH_S = 2.0
_MOST_RANKS = 1 << 12  # on one host


class FirstHost(HostChannel):
    """The channel of the first host, to which all other hosts connect. There may be no others."""

    def __init__(self, hello: Hello, port: int) -> None:
        super().__init__()
        self._hello = hello
        self._port = port
        self._strangers: list[tuple[Connection, str]] = []
        self._members: dict[str, Connection] = {}
        self._ranks = {hello.host: hello.ranks}
        self._refusals: set[str] = set()
        self._ended: dict[str, Failure | None] = {}
        self._failures: list[Failure] = []
        self._decide_at = 0.0
        self._has_met = False
        self._listener: socket.socket | None = None
        if len(hello.hosts) > 1:
            try:
                self._listener = socket.create_server(
                    ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=len(hello.hosts)
                )
            except OSError:
                try:
                    self._listener = socket.create_server(("", port), backlog=len(hello.hosts))
                except OSError as error:
                    raise ConfigError(
                        f"[smdp] {hello.host} cannot listen on port {port}, to which other hosts connect:"
                        f" {error.strerror}. Set MASTER_PORT on all hosts to another port; it and the next"
                        " two must be free."
                    ) from None
            self._listener.setblocking(False)

    def meet(self, timeout_s: float) -> tuple[int, int]:
        """Waits for all hosts and sends each its first rank."""
        deadline = time.monotonic() + timeout_s
        try:
            while missing := [host for host in self._hello.hosts if host not in self._ranks]:
                if time.monotonic() > deadline:
                    raise ConfigError(" ".join([_missing(missing, timeout_s), *sorted(self._refusals)]))
                self._wait(0.2)
                self._welcome()
                self._forget_gone()
        except ConfigError as error:
            for connection in self._members.values():
                connection.send(refused=str(error))
            raise
        self._has_met = True
        world_size, first = sum(self._ranks.values()), 0
        for host in self._hello.hosts:
            if host in self._members:
                self._members[host].send(go=[first, world_size])
            first += self._ranks[host]
        return 0, world_size

    def _forget_gone(self) -> None:
        """Forgets hosts whose connection broke before all have met, so that they can connect again."""
        if not self._has_met:
            for host in [host for host, member in self._members.items() if member.is_gone()]:
                del self._members[host], self._ranks[host]

    def _wait(self, seconds: float) -> None:
        sockets = [connection.sock for connection, _ in self._strangers]
        if self._listener is not None:
            sockets.append(self._listener)
        select.select(sockets, [], [], seconds)

    def _welcome(self) -> None:
        """Accepts the hosts that prove that they belong to the job, and refuses other connections."""
        with contextlib.suppress(OSError):
            while self._listener is not None:
                connection, challenge = Connection(self._listener.accept()[0]), secrets.token_hex(16)
                connection.send(challenge=challenge)
                self._strangers.append((connection, challenge))
        still = []
        for connection, challenge in self._strangers:
            message = next(connection.receive(), None)
            if message is not None:
                self._admit(connection, message.get("hello"), challenge)
            elif connection.is_open and time.monotonic() - connection.since < _HELLO_S:
                still.append((connection, challenge))
            else:
                connection.close()
        self._strangers = still

    def _admit(self, connection: Connection, hello: Any, challenge: str) -> None:
        self._forget_gone()
        ours = self._hello
        try:
            theirs = Hello(str(hello["host"]), tuple(hello["hosts"]), _count(hello["ranks"]), ours.secret)
            is_proven = hmac.compare_digest(theirs.proof(challenge), str(hello["proof"]))
        except (LookupError, TypeError, ValueError):
            refusal: str | None = "[smdp] this is not a valid hello"
        else:
            refusal = self._check(theirs, is_proven)
        if refusal is None:
            self._members[theirs.host] = connection
            self._ranks[theirs.host] = theirs.ranks
        else:
            self._refusals.add(refusal)
            connection.send(refused=refusal)
            connection.close()

    def _check(self, theirs: Hello, is_proven: bool) -> str | None:
        """Returns the reason why a host is refused, or None."""
        ours = self._hello
        if not is_proven:
            return f"[smdp] {theirs.host} and {ours.host} have different SMDP_SECRETs; set the same on all"
        if theirs.hosts != ours.hosts or theirs.host not in ours.hosts:
            return (
                f"[smdp] the job's hosts are {list(theirs.hosts)} on {theirs.host} and {list(ours.hosts)}"
                f" on {ours.host}; resourceconfig.json must have the same list on all hosts"
            )
        if theirs.host in self._ranks:
            return f"[smdp] there is already a host named {theirs.host}; names of hosts must be unique"
        return None

    def failed(self, failure: Failure) -> None:
        """Records that a rank, of this host or another, has failed."""
        if not self._failures:
            self._decide_at = time.monotonic() + _DECIDE_S
        self._failures.append(failure)

    def asked(self, failure: Failure) -> None:
        """Tells all hosts that a rank, of this host or another, asks for a restart."""
        if not self.has_asked:
            self.has_asked = True
            for connection in self._members.values():
                connection.send(asked=dataclasses.asdict(failure))

    def ended(self, failure: Failure | None) -> None:
        """Records that the ranks of this host have ended."""
        self._ended.setdefault(self._hello.host, failure)

    def poll(self) -> None:
        """Handles the messages of the other hosts. Never waits."""
        self._welcome()
        for host, connection in self._members.items():
            for message in connection.receive():
                if "failed" in message:
                    self.failed(Failure(**message["failed"]))
                elif "asked" in message:
                    self.asked(Failure(**message["asked"]))
                elif "ended" in message:
                    asked = message["ended"]
                    self._ended.setdefault(host, None if asked is None else Failure(**asked))
            if not connection.is_open and host not in self._ended:
                self._ended[host] = None
                self.failed(Failure(host, None, 1, "it is gone; the connection to its launcher broke"))
        self._decide()

    def _decide(self) -> None:
        if self.is_over or self.failure is not None:
            left = [connection for connection in self._members.values() if not connection.flush()]
            self.is_over = not left
            return
        causes = [failure for failure in self._failures if not failure.is_consequence]
        ended = [self._ended.get(host) for host in self._hello.hosts]
        asked = [failure for failure in ended if failure is not None]
        if self._failures and (causes or time.monotonic() >= self._decide_at):
            # A rank that SIGTERM ended has not failed, but is the cause if others only lost their peers.
            signalled = [failure for failure in asked if not failure.is_restart]
            self._finish((causes or signalled or self._failures)[0])
        elif not self._failures and len(self._ended) == len(self._hello.hosts):
            self._finish(asked[0] if asked else None)

    def _finish(self, failure: Failure | None) -> None:
        self.failure, self.is_over = failure, failure is None
        for connection in self._members.values():
            connection.send(over=None if failure is None else dataclasses.asdict(failure))

    def close(self) -> None:
        """Closes all sockets, after the other hosts have read all messages."""
        for connection in self._members.values():
            connection.finish(_FINISH_S)
        for connection, _ in self._strangers:
            connection.close()
        if self._listener is not None:
            self._listener.close()


def _count(ranks: object) -> int:
    """Checks a number of ranks that came over the network.

    Raises:
        ValueError: It is not a valid number of ranks.
    """
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 <= ranks <= _MOST_RANKS:
        raise ValueError(ranks)
    return ranks


def _missing(hosts: list[str], timeout_s: float) -> str:
    """Returns the message about hosts that did not connect; names that cannot be resolved are listed."""
    unknown = []
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except OSError:
            unknown.append(host)
    names = f" These names cannot be resolved here: {', '.join(unknown)}." if unknown else ""
    return (
        f"[smdp] these hosts of resourceconfig.json did not connect within {timeout_s:g} s:"
        f" {', '.join(hosts)}.{names} Check that their containers also run smdp.sagemaker:main;"
        " SMDP_INIT_TIMEOUT sets the time limit."
    )
