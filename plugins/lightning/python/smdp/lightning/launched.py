"""The ranks of the launcher that smdp detects, for when Lightning detects a different launcher or none."""

from __future__ import annotations

from typing import Any

from lightning.fabric.plugins.environments import (
    ClusterEnvironment,
    LightningEnvironment,
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
from smdp.environments.single import SingleProcess
from smdp.environments.slurm import Slurm
from smdp.environments.torch_port import torch_port
from smdp.environments.torchrun import Torchrun

_LIGHTNINGS = "lightning.fabric.plugins.environments"
_BY_MPI = (MPIEnvironment, LSFEnvironment)  # jsrun also sets the variables of an MPI
# Lightning's environment for each launcher that smdp detects.
_SAME: dict[type[environments.Environment], Any] = {
    Torchrun: TorchElasticEnvironment,
    OpenMpi: _BY_MPI,
    Mpich: _BY_MPI,
    Mvapich: _BY_MPI,
    Slurm: SLURMEnvironment,
}


class LaunchedEnvironment(ClusterEnvironment):
    """Tells Lightning the rank of this process, and that a launcher has started all processes.

    Args:
        launch: This process's place in its job. Default: as smdp detects it.

    Raises:
        smdp.ConfigError: The launcher's variables are incomplete or inconsistent.

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
        """True, because the launcher starts all processes."""
        return True

    @property
    def main_address(self) -> str:
        """The address of rank 0."""
        return self._launch.master_addr

    @property
    def main_port(self) -> int:
        """The port of rank 0."""
        return self._port

    @staticmethod
    def detect() -> bool:
        """Returns whether a launcher has started this process as one of several."""
        return environments.detect(needs_master=False).world_size > 1

    def world_size(self) -> int:
        """Returns the number of ranks."""
        return self._launch.world_size

    def set_world_size(self, size: int) -> None:
        """Does nothing, because the launcher sets the number of ranks."""

    def global_rank(self) -> int:
        """Returns the rank of this process."""
        return self._launch.rank

    def set_global_rank(self, rank: int) -> None:
        """Sets the rank by which Lightning logs and saves to the launcher's rank, not to the given one."""
        rank_zero_only.rank = self._launch.rank

    def local_rank(self) -> int:
        """Returns the local rank of this process on its host."""
        return self._launch.local_rank or 0

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Checks that Lightning's devices and hosts match the ranks that the launcher has started.

        Raises:
            ValueError: The numbers differ.
        """
        check_devices(self._launch, num_devices, num_nodes)

    def node_rank(self) -> int:
        """Returns the host's number, provided that all hosts have the same number of ranks."""
        return self._launch.rank // (self._launch.local_size or 1)


def check_devices(launch: environments.Launch, num_devices: int, num_nodes: int) -> None:
    """Checks that there are as many devices as ranks.

    Raises:
        ValueError: The numbers differ.
    """
    ranks = launch.world_size
    if num_devices * num_nodes != ranks:
        started = f"{counted(ranks, 'rank')} {'was' if ranks == 1 else 'were'} started"
        raise ValueError(
            f"[smdp] {started} ({launch.source}), but the Trainer has num_nodes={num_nodes} times"
            f" devices={num_devices}. Set num_nodes to the number of hosts and devices to the number of ranks"
            " per host. On CPUs, devices is 1 by default."
        )


def launched(found: ClusterEnvironment, num_processes: int) -> ClusterEnvironment:
    """Returns the environment to use: Lightning's, or smdp's if smdp detects a different launcher.

    For example, a SLURM batch shell has the variables of a task and passes them on to `smdp run` and mpirun.
    All ranks must choose the same class, because each class has its own port, so the choice does not depend
    on this process's rank. A class that is not Lightning's was chosen by the user and is kept.

    Args:
        found: The environment that Lightning has found.
        num_processes: The number of processes of the Trainer, on all hosts.
    """
    starts_ranks = isinstance(found, LightningEnvironment) and num_processes > 1
    if starts_ranks and environments.find() is SingleProcess:
        return found  # detect() would warn that WORLD_SIZE, which Lightning sets, comes without RANK
    if not type(found).__module__.startswith(_LIGHTNINGS) or not LaunchedEnvironment.detect():
        return found
    if isinstance(found, _SAME.get(environments.find(), ())):
        return found
    return LaunchedEnvironment()
