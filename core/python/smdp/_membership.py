"""Who is in a group, where its ranks are, and how it ends."""

from __future__ import annotations

from . import _core
from ._arguments import text


class Membership:
    """This process as one rank of a group, without the operations that the group offers."""

    def __init__(self, core: _core.Group) -> None:
        self._core = core

    @property
    def rank(self) -> int:
        """Rank of this process in the group."""
        return self._core.rank

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self._core.size

    @property
    def core(self) -> _core.Group:
        """The core's group."""
        return self._core

    @property
    def name(self) -> str:
        """Name, equal on all ranks."""
        return self._core.name

    @property
    def local_rank(self) -> int:
        """Index among the group's ranks on this host."""
        return self._core.local_rank

    @property
    def local_size(self) -> int:
        """Number of the group's ranks on this host."""
        return self._core.local_size

    @property
    def hosts(self) -> list[list[int]]:
        """Ranks of each host."""
        return self._core.hosts

    @property
    def host_names(self) -> list[str]:
        """Host of each rank."""
        return self._core.host_names

    def abort(self, reason: str) -> None:
        """Fails what is in flight on all ranks with this reason and closes the group everywhere."""
        self._core.abort(text("reason", reason))

    def shutdown(self) -> None:
        """Leaves the group; safe to call twice."""
        self._core.shutdown()

    def error(self) -> Exception | None:
        """The failure that closed the group; None while it works."""
        return self._core.error()
