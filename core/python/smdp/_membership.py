"""The members of a group, their hosts, and the end of a group."""

from __future__ import annotations

from . import _core
from ._arguments import text


class Membership:
    """This process as a rank of a group; subclasses add the operations."""

    def __init__(self, core: _core.Group) -> None:
        self._core = core

    @property
    def rank(self) -> int:
        """The rank of this process in the group."""
        return self._core.rank

    @property
    def size(self) -> int:
        """The number of ranks in the group."""
        return self._core.size

    @property
    def core(self) -> _core.Group:
        """The underlying group of the C++ core."""
        return self._core

    @property
    def name(self) -> str:
        """The group's name, which is the same on all ranks."""
        return self._core.name

    @property
    def local_rank(self) -> int:
        """The index of this process among the group's ranks on this host."""
        return self._core.local_rank

    @property
    def local_size(self) -> int:
        """The number of the group's ranks on this host."""
        return self._core.local_size

    @property
    def hosts(self) -> list[list[int]]:
        """The ranks of each host."""
        return self._core.hosts

    @property
    def host_names(self) -> list[str]:
        """The host name of each rank."""
        return self._core.host_names

    def abort(self, reason: str) -> None:
        """Closes the group on all ranks; operations in flight fail with this reason."""
        self._core.abort(text("reason", reason))

    def shutdown(self) -> None:
        """Leaves the group. It is safe to call this twice."""
        self._core.shutdown()

    def error(self) -> Exception | None:
        """Returns the error that closed the group, or None while the group is open."""
        return self._core.error()
