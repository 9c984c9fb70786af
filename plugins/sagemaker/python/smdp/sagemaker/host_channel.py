"""The channel between the launchers of a job's hosts, which all connect to the first host's launcher.

A message is a JSON object on one line. The first host sends {"challenge"}. A host answers {"hello"} with its
number of ranks, and receives {"go"} with its first rank once all hosts have connected, or {"refused"}. Later
a host sends {"failed"}, {"asked"} or {"ended"}. The first host forwards {"asked"}, decides which rank failed
first, and sends {"over"} to all. If a connection breaks, its host counts as lost.
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
    """The description of itself that a host sends.

    Attributes:
        host: Name of the host.
        hosts: The job's hosts, as this host knows them.
        ranks: Number of ranks that it starts.
        secret: The job's secret, or an empty string. It is never sent.
    """

    host: str
    hosts: tuple[str, ...]
    ranks: int
    secret: str = ""

    def message(self, challenge: str) -> dict[str, Any]:
        """Returns the message to send."""
        return {"host": self.host, "hosts": self.hosts, "ranks": self.ranks, "proof": self.proof(challenge)}

    def proof(self, challenge: str) -> str:
        """Returns a proof that this host knows the secret."""
        text = json.dumps([challenge, self.host, self.ranks])
        return hmac.new(self.secret.encode(), text.encode(), hashlib.sha256).hexdigest()


class HostChannel(ABC):
    """Connects the launcher of this host to those of the other hosts.

    Attributes:
        failure: The first failure on any host, or None.
        has_asked: Whether a rank of some host has saved its work and asks for a restart. All ranks then end.
        is_over: Whether the job is over on all hosts.
    """

    def __init__(self) -> None:
        self.failure: Failure | None = None
        self.has_asked = False
        self.is_over = False

    @abstractmethod
    def meet(self, timeout_s: float) -> tuple[int, int]:
        """Waits for the other hosts. Returns this host's first rank and the total number of ranks.

        Raises:
            ConfigError: Some hosts did not connect in time, or their lists of hosts differ.
        """

    @abstractmethod
    def failed(self, failure: Failure) -> None:
        """Reports that a rank of this host has failed."""

    @abstractmethod
    def asked(self, failure: Failure) -> None:
        """Reports that a rank of this host asks for a restart."""

    @abstractmethod
    def ended(self, failure: Failure | None) -> None:
        """Reports that this host's ranks have ended.

        `failure` describes the first rank that was asked to end, if any.
        """

    @abstractmethod
    def poll(self) -> None:
        """Handles the messages of the other hosts. Never waits."""

    @abstractmethod
    def close(self) -> None:
        """Closes all sockets."""
