"""Exceptions of smdp. Messages name the rank, its host, the values on both sides, and the fix."""

from __future__ import annotations

import builtins
from collections.abc import Iterable


class SmdpError(RuntimeError):
    """Base class of all runtime failures of smdp. Invalid arguments raise ValueError instead."""


class TimeoutError(SmdpError, builtins.TimeoutError):
    """A deadline passed. The message names the ranks that this rank was waiting for."""


class PeerLostError(SmdpError):
    """A process or host of the group is gone.

    Attributes:
        ranks: The lost ranks, numbered within the group.
    """

    ranks: list[int]

    def __init__(self, message: str = "", ranks: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.ranks = list(ranks)

    def __reduce__(self) -> tuple[type[PeerLostError], tuple[str, list[int]]]:
        return type(self), (str(self), self.ranks)


class MismatchError(SmdpError):
    """Ranks called different operations, or the same operation with a different shape, dtype or root."""


class ConfigError(SmdpError):
    """An environment variable, option or rendezvous value is invalid."""


class ClosedError(SmdpError):
    """The group was shut down, or this process is a forked child of the process that created it."""
