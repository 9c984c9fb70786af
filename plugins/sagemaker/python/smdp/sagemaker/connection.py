"""Messages between launchers: JSON objects, one per line, over a non-blocking socket."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from collections.abc import Iterator
from typing import Any

_LINE_LIMIT = 1 << 16


class Connection:
    """Sends and receives messages over a socket without blocking."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.setblocking(False)
        # An unreachable host is detected within 4 seconds, whether or not data is being sent to it.
        for level, option, value in (
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 4000),
        ):
            sock.setsockopt(level, option, value)
        self.is_open = True
        self.since = time.monotonic()
        self._in = b""
        self._out = b""
        self._messages: list[dict[str, Any]] = []

    def send(self, **message: Any) -> None:
        """Sends a message. What the socket does not accept now is kept for flush()."""
        self._out += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> bool:
        """Sends what was kept. Returns True once nothing is left."""
        while self.is_open and self._out:
            try:
                self._out = self._out[self.sock.send(self._out) :]
            except BlockingIOError:
                return False
            except OSError:
                self.close()
        return True

    def receive(self) -> Iterator[dict[str, Any]]:
        """Yields the messages that have arrived."""
        while self.is_open and len(self._in) <= _LINE_LIMIT:
            try:
                data = self.sock.recv(1 << 16)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._in += data
            if not data:
                self.close()
        *lines, self._in = self._in.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict):
                self.close()
                break
            self._messages.append(message)
        if len(self._in) > _LINE_LIMIT:
            self.close()
        while self._messages:
            yield self._messages.pop(0)

    def is_gone(self) -> bool:
        """Returns whether the other side has closed. Its messages stay available to receive()."""
        self._messages = list(self.receive())
        return not self.is_open

    def finish(self, timeout_s: float) -> None:
        """Sends what was kept, then closes once the other side has read everything and closed."""
        deadline = time.monotonic() + timeout_s
        while not self.flush() and time.monotonic() < deadline:
            select.select([], [self.sock], [], 0.1)
        if self.is_open:
            with contextlib.suppress(OSError):
                self.sock.shutdown(socket.SHUT_WR)
        while self.is_open and time.monotonic() < deadline:
            select.select([self.sock], [], [], 0.1)
            for _ in self.receive():
                pass
        self.close()

    def close(self) -> None:
        """Closes the socket."""
        self.is_open = False
        self.sock.close()
