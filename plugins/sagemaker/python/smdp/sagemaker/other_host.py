"""The channel of all hosts except the first."""

from __future__ import annotations

import dataclasses
import select
import socket
import time

from smdp import ConfigError
from smdp.sagemaker.connection import Connection
from smdp.sagemaker.failure import Failure
from smdp.sagemaker.host_channel import Hello, HostChannel


class OtherHost(HostChannel):
    """The channel of a host that connects to the first host."""

    def __init__(self, hello: Hello, port: int) -> None:
        super().__init__()
        self._hello = hello
        self._port = port
        self._first = hello.hosts[0]
        self._connection: Connection | None = None

    def meet(self, timeout_s: float) -> tuple[int, int]:
        """Introduces this host to the first host and waits for its first rank."""
        deadline = time.monotonic() + timeout_s
        reason = "no attempt was made"
        while time.monotonic() < deadline:
            try:
                address = (self._first, self._port)
                sock = socket.create_connection(
                    address, timeout=min(5.0, max(0.1, deadline - time.monotonic()))
                )
            except socket.gaierror as error:
                reason = f"the name {self._first} cannot be resolved ({error.strerror})"
            except OSError as error:
                reason = f"{self._first} does not answer on port {self._port} ({error.strerror or error})"
            else:
                self._connection = Connection(sock)
                place = self._introduce(self._connection, deadline)
                if place is not None:
                    return place
                reason = f"{self._first} accepted a connection on port {self._port} but closed it"
            time.sleep(0.2)
        raise ConfigError(
            f"[smdp] {self._hello.host} could not reach the first host, {self._first}, within"
            f" {timeout_s:g} s: {reason}. Check that its container is running, and that the security group"
            " lets the job's hosts talk to each other; SMDP_INIT_TIMEOUT sets the time limit."
        )

    def _introduce(self, connection: Connection, deadline: float) -> tuple[int, int] | None:
        while connection.is_open and time.monotonic() < deadline:
            select.select([connection.sock], [], [], 0.2)
            for message in connection.receive():
                if "challenge" in message:
                    connection.send(hello=self._hello.message(str(message["challenge"])))
                elif "refused" in message:
                    raise ConfigError(str(message["refused"]))
                elif "go" in message:
                    first, world_size = message["go"]
                    return int(first), int(world_size)
        return None

    def failed(self, failure: Failure) -> None:
        """Reports that a rank of this host has failed."""
        assert self._connection is not None
        self._connection.send(failed=dataclasses.asdict(failure))

    def asked(self, failure: Failure) -> None:
        """Reports that a rank of this host asks for a restart."""
        assert self._connection is not None
        self._connection.send(asked=dataclasses.asdict(failure))

    def ended(self, failure: Failure | None) -> None:
        """Reports that this host's ranks have ended."""
        assert self._connection is not None
        self._connection.send(ended=None if failure is None else dataclasses.asdict(failure))

    def poll(self) -> None:
        """Handles the messages of the first host. Never waits."""
        assert self._connection is not None
        if self.is_over:
            return
        self._connection.flush()
        for message in self._connection.receive():
            if "asked" in message:
                self.has_asked = True
            if "over" in message:
                self.failure = None if message["over"] is None else Failure(**message["over"])
                self.is_over = True
                return
        if not self._connection.is_open:
            self.failure = Failure(self._first, None, 1, "it is gone; the connection to its launcher broke")
            self.is_over = True

    def close(self) -> None:
        """Closes the socket."""
        if self._connection is not None:
            self._connection.close()
