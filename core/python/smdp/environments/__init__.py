"""Detects which launcher started this process, and with which rank.

The order is: arguments, SMDP_*, torchrun, Open MPI, MPICH and Intel MPI, MVAPICH, Horovod, SLURM, SageMaker,
Kubeflow without torchrun, Kubernetes index, single process. A launcher that runs inside the allocation of
another one comes before it.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Mapping

from smdp._errors import ConfigError
from smdp.environments.base import MOST_RANKS, PLACEHOLDER, Environment, Launch, Ranks, make_launch
from smdp.environments.choice import explain as _explain
from smdp.environments.choice import log_choice as _log_choice
from smdp.environments.choice import warn_of_cost
from smdp.environments.horovod import Horovod
from smdp.environments.kubeflow import Kubeflow
from smdp.environments.kubernetes import Kubernetes
from smdp.environments.open_mpi import OpenMpi
from smdp.environments.pmi import Mpich, Mvapich
from smdp.environments.sagemaker import SageMaker
from smdp.environments.single import SingleProcess
from smdp.environments.slurm import Slurm
from smdp.environments.smdp_variables import SmdpVariables
from smdp.environments.torchrun import Torchrun

__all__ = ["ENVIRONMENTS", "Environment", "Launch", "detect", "explain", "find", "log_choice"]

ENVIRONMENTS: tuple[type[Environment], ...] = (
    SmdpVariables,
    Torchrun,
    OpenMpi,
    Mpich,
    Mvapich,
    Horovod,
    Slurm,
    SageMaker,
    Kubeflow,
    Kubernetes,
    SingleProcess,
)
"""The known launchers, in the order of detection. The first one that is detected is used."""


def find(environ: Mapping[str, str] = os.environ) -> type[Environment]:
    """Returns the launcher's class, which is SingleProcess if there is no launcher."""
    return next(environment for environment in ENVIRONMENTS if environment.detect(environ))


def explain(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Returns a line on which launcher is used, and a line on each other one whose variables are set."""
    return _explain(environ, ENVIRONMENTS)


def log_choice(environ: Mapping[str, str] = os.environ) -> None:
    """Logs explain() at level debug, each line once per process."""
    _log_choice(ENVIRONMENTS, environ)


def detect(
    environ: Mapping[str, str] = os.environ,
    *,
    rank: int | None = None,
    world_size: int | None = None,
    local_rank: int | None = None,
    local_size: int | None = None,
    master_addr: str | None = None,
    master_port: int | None = None,
    needs_master: bool = True,
) -> Launch:
    """Returns this process's place in its job. Arguments take precedence over the environment.

    Args:
        environ: The environment variables.
        rank: Rank of this process; requires world_size.
        world_size: Number of processes; requires rank.
        local_rank: Rank on this host.
        local_size: Number of processes on this host.
        master_addr: Address at which rank 0 can be reached.
        master_port: Port of rank 0's store.
        needs_master: Whether an unknown master is an error. False if the caller already has a store.

    Raises:
        ValueError: An argument is invalid.
        ConfigError: A variable is invalid or missing.

    Example:
        >>> detect({"SMDP_RANK": "1", "SMDP_WORLD_SIZE": "2", "SMDP_LOCAL_WORLD_SIZE": "2"}).source
        'SMDP_* variables'
    """
    if (rank is None) != (world_size is None):
        missing, there, value = (
            ("world_size", "rank", rank) if world_size is None else ("rank", "world_size", world_size)
        )
        raise ValueError(f"{there}={value} was passed without {missing}; pass both or neither")
    _check_argument("world_size", world_size, 1, MOST_RANKS + 1)
    _check_argument("rank", rank, 0, world_size, "world_size")
    _check_argument("master_port", master_port, 1, 65536)
    if rank is not None and world_size is not None:
        environment: type[Environment] = SmdpVariables
        launch = make_launch(environ, Ranks(rank, world_size, None, None), "arguments")
    else:
        log_choice(environ)
        environment = find(environ)
        launch = environment.launch(environ)
        warn_of_cost(environment, environ)
    _check_argument("local_size", local_size, 1, launch.world_size + 1)
    limit = local_size or launch.local_size or launch.world_size
    _check_argument("local_rank", local_rank, 0, limit, "the number of ranks on this host")
    launch = dataclasses.replace(
        launch,
        local_rank=launch.local_rank if local_rank is None else local_rank,
        local_size=launch.local_size if local_size is None else local_size,
        master_addr=master_addr or launch.master_addr,
        master_port=launch.master_port if master_port is None else master_port,
    )
    if needs_master and not launch.master_addr:
        if launch.is_one_host:
            return dataclasses.replace(launch, master_addr="127.0.0.1")
        hint = environment.master_hint
        if launch.rank == 0:
            hint = hint.replace(PLACEHOLDER, socket.gethostname())
        raise ConfigError(
            f"SMDP_MASTER_ADDR is not set, and {launch.source} does not provide the address of rank 0 of "
            f"{launch.world_size}; {hint}"
        )
    return launch


def _check_argument(name: str, value: object, low: int, high: int | None = None, whose: str = "") -> None:
    """Raises ValueError unless value is None or an integer with low <= value < high."""
    if value is None:
        return
    if isinstance(value, int) and not isinstance(value, bool) and low <= value < (high or value + 1):
        return
    upper = "" if high is None else f" and <= {high - 1}"
    reason = f", since {whose}={high}" if whose and high is not None else ""
    raise ValueError(f"{name}={value!r} is not valid; allowed: an integer >= {low}{upper}{reason}")
