"""The ranks of the launcher that smdp finds, where Lightning finds a different one or none."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LSFEnvironment,
    MPIEnvironment,
    SLURMEnvironment,
    TorchElasticEnvironment,
)
from lightning.fabric.utilities.rank_zero import rank_zero_only

from smdp import environments
from smdp._shown import counted
from smdp.environments.open_mpi import OpenMpi
from smdp.environments.pmi import Mpich, Mvapich
from smdp.environments.slurm import Slurm
from smdp.environments.torch_port import torch_port
from smdp.environments.torchrun import Torchrun

_LIGHTNINGS = "lightning.fabric.plugins.environments"
_BY_MPI = (MPIEnvironment, LSFEnvironment)  # jsrun also sets the variables of an MPI
# What Lightning has for a launcher that smdp finds.
_SAME: dict[type[environments.Environment], Any] = {
    Torchrun: TorchElasticEnvironment,
    OpenMpi: _BY_MPI,
    Mpich: _BY_MPI,
    Mvapich: _BY_MPI,
    Slurm: SLURMEnvironment,
}


class LaunchedEnvironment(ClusterEnvironment):
    """Lets Lightning start no processes of its own, and know which rank this one is.

    Args:
        launch: What the launcher says. Default: what smdp finds.

    Raises:
        smdp.ConfigError: The launcher's variables are incomplete or contradict each other.

    Example:
        >>> from lightning.fabric.strategies import DDPStrategy
        >>> strategy = DDPStrategy(process_group_backend="smdp")
        >>> fabric = Fabric(strategy=strategy, plugins=[LaunchedEnvironment()])  # doctest: +SKIP
    """

    def __init__(self, launch: environments.Launch | None = None) -> None:
        if launch is None:
            launch = environments.detect()
        self._launch = launch
        self._port = torch_port(launch.master_port)

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
        """Sets which rank logs and saves in Lightning: that of the launcher, and not the given one."""
        rank_zero_only.rank = self._launch.rank

    def local_rank(self) -> int:
        """Give its number on this host."""
        return self._launch.local_rank or 0

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Compares Lightning's numbers of devices and hosts with what the launcher has started.

        Raises:
            ValueError: They are not as many ranks.
        """
        check_devices(self._launch, num_devices, num_nodes)

    def node_rank(self) -> int:
        """Give the host's number, where each has as many ranks as this one."""
        return self._launch.rank // (self._launch.local_size or 1)


def check_devices(launch: environments.Launch, num_devices: int, num_nodes: int) -> None:
    """Raises ValueError unless there are as many devices as the launcher has started ranks."""
    ranks = launch.world_size
    if num_devices * num_nodes != ranks:
        started = f"{counted(ranks, 'rank')} {'was' if ranks == 1 else 'were'} started"
        raise ValueError(
            f"[smdp] {started} ({launch.source}), and the Trainer has num_nodes={num_nodes} times"
            f" devices={num_devices}. Give it the ranks of a host as devices, which is 1 by default on CPUs,"
            " and the hosts as num_nodes."
        )


def launched(found: ClusterEnvironment) -> ClusterEnvironment:
    """Returns the environment to use: Lightning's, or smdp's if smdp finds a different launcher.

    A batch shell of SLURM has the variables of a task, and passes them on to `smdp run` and mpirun. All ranks
    must choose the same class, because each class has its own port. So the choice does not depend on whether
    the two agree on this process's rank. A class that is not Lightning's was chosen by the user, and stays.
    """
    if not type(found).__module__.startswith(_LIGHTNINGS) or not LaunchedEnvironment.detect():
        return found
    if isinstance(found, _SAME.get(environments.find(), ())):
        return found
    return LaunchedEnvironment()
