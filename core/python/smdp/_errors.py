"""Exceptions of smdp; a message names the rank, its host, the values on both sides and the fix."""

from __future__ import annotations

import builtins
from collections.abc import Iterable


class SmdpError(RuntimeError):
    """Base of all run-time failures of smdp; wrong arguments are ValueError."""


class TimeoutError(SmdpError, builtins.TimeoutError):
    """A deadline passed; the message names whom this rank waited for."""


class PeerLostError(SmdpError):
    """A process or host of the group is gone.

    Attributes:
        ranks: Ranks (within the group) that are gone.
    """

    ranks: list[int]

    def __init__(self, message: str = "", ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)

    def __reduce__(self) -> tuple[type[PeerLostError], tuple[str, list[int]]]:
        return type(self), (str(self), self.ranks)


class MismatchError(SmdpError):
    """Ranks called different operations, or the same one with different shape, dtype or root."""


class ConfigError(SmdpError):
    """An environment variable, option or rendezvous value is wrong."""


class ClosedError(SmdpError):
    """The group was shut down, or this process is a forked child of the one that made it."""
