"""The launchers of a job's hosts know of each other: all are connected to the first host's.

A message is a JSON object in a line. The first host says {"challenge"}; a host answers {"hello"} with its
ranks, and gets {"go"} with its place once all have come, or {"refused"}. Then a host says {"failed"},
{"asked"} or {"ended"}; the first host hands on {"asked"}, decides who failed first and says {"over"} to all.
A connection that breaks is a host that is gone.
"""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import json
from abc import ABC, abstractmethod
from typing import Any

from smdp.sagemaker.failure import Failure


@dataclasses.dataclass(frozen=True)
class Hello:
    """What a host says of itself.

    Attributes:
        host: Its name.
        hosts: The job's hosts, as it knows them.
        ranks: How many it starts.
        secret: The job's, empty if there is none. It does not travel.
    """

    host: str
    hosts: tuple[str, ...]
    ranks: int
    secret: str = ""

    def message(self, challenge: str) -> dict[str, Any]:
        """Give what travels."""
        return {"host": self.host, "hosts": self.hosts, "ranks": self.ranks, "proof": self.proof(challenge)}

    def proof(self, challenge: str) -> str:
        """Prove to know the secret."""
        text = json.dumps([challenge, self.host, self.ranks])
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


class HostChannel(ABC):
    """What a launcher knows of the other hosts.

    Attributes:
        failure: Who failed first, of all hosts; None while nobody has.
        has_asked: A rank of some host has saved its work and asks for a restart; it is time to leave.
        is_over: Nothing is left to do.
    """

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.has_asked = False
        self.is_over = False

    @abstractmethod
    def meet(self, timeout_s: float) -> tuple[int, int]:
        """Wait for the others; give the first rank of this host and the number of ranks of all.

        Raises:
            ConfigError: Some did not come, or their lists of hosts differ.
        """

    @abstractmethod
    def failed(self, failure: Failure) -> None:
        """Say that a rank of this host has failed."""

    @abstractmethod
    def asked(self, failure: Failure) -> None:
        """Say that a rank of this host asks for a restart."""

    @abstractmethod
    def ended(self, failure: Failure | None) -> None:
        """Say that this host's ranks have ended; failure: the first of those that were asked to end."""

    @abstractmethod
    def poll(self) -> None:
        """Take what the others have said. Never waits."""

    @abstractmethod
    def close(self) -> None:
        """Close all sockets."""
