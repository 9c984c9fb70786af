"""Ranks by the variables of a launcher that Lightning does not know, such as mpirun without mpi4py."""

from __future__ import annotations

from lightning.fabric.plugins.environments import ClusterEnvironment, LightningEnvironment

from smdp import environments
from smdp.environments.torch_variables import free_port


class LaunchedEnvironment(ClusterEnvironment):
    """Lets Lightning start no processes of its own, and know which rank this one is.

    Args:
        launch: What the launcher says.
    """

    def __init__(self, launch: environments.Launch) -> None:
        self._launch = launch
        # As set_torch_variables() has it: torch's store beside smdp's.
        self._port = launch.master_port - 1 if launch.master_port > 1 else free_port()

    @property
    def creates_processes_externally(self) -> bool:
        """True."""
        return True

    @property
    def main_address(self) -> str:
        """Where rank 0 listens."""
        return self._launch.master_addr

    @property
    def main_port(self) -> int:
        """Where rank 0 listens."""
        return self._port

    @staticmethod
    def detect() -> bool:
        """Tell whether a launcher has started this process as one of several."""
        return environments.detect(needs_master=False).world_size > 1

    def world_size(self) -> int:
        """Give the number of ranks."""
        return self._launch.world_size

    def set_world_size(self, size: int) -> None:
        """Do nothing: the launcher has said it."""

    def global_rank(self) -> int:
        """Give this process's rank."""
        return self._launch.rank

    def set_global_rank(self, rank: int) -> None:
        """Do nothing: the launcher has said it."""

    def local_rank(self) -> int:
        """Give its number on this host."""
        return self._launch.local_rank or 0

    def node_rank(self) -> int:
        """Give the host's number, where each has as many ranks as this one."""
        return self._launch.rank // (self._launch.local_size or 1)


def launched(found: ClusterEnvironment) -> ClusterEnvironment:
    """Give the environment to use instead of the one that Lightning found.

    Only where Lightning knows no launcher and would start processes itself, although one has.
    """
    is_own = type(found) is LightningEnvironment and not found.creates_processes_externally
    if not is_own or not LaunchedEnvironment.detect():
        return found
    return LaunchedEnvironment(environments.detect())
