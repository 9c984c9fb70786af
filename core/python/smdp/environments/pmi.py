"""Detects ranks started by MPI launchers that use PMI: MPICH, Intel MPI and MVAPICH."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import PLACEHOLDER, Environment, Launch, make_launch, read_ranks
from smdp.environments.hydra import control_port
from smdp.environments.master import of_launcher
from smdp.environments.slurm import Slurm, first_host_of_job


class Mpich(Environment):
    """MPICH or Intel MPI, which set PMI_*.

    On several hosts inside SLURM, rank 0 is assumed to be on the first host of the allocation. Otherwise, it
    is assumed to be on mpiexec's host, which is known from MPICH's proxies; Intel MPI needs SMDP_MASTER_ADDR.
    If the assumption is wrong, rank 0 raises an error.
    """

    name = "MPICH or Intel MPI"
    variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", "PMI_PORT")
    master_hint = f"start with mpiexec -genv SMDP_MASTER_ADDR {PLACEHOLDER}"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether a process manager with PMI, other than srun, started this process."""
        return bool(config.read(environ, "PMI_RANK")) and not cls._is_by_srun(environ)

    @classmethod
    def why_not(cls, environ: Mapping[str, str]) -> str:
        """Returns the reason; variables that srun has set are explained."""
        if cls._is_by_srun(environ):
            return "srun --mpi=pmi2 set these variables; SLURM's own also provide local ranks and hosts"
        return super().why_not(environ)

    @classmethod
    def _is_by_srun(cls, environ: Mapping[str, str]) -> bool:
        # If mpiexec runs as a step of SLURM, its ranks have both sets of variables, but also local ranks.
        if config.read(environ, "MPI_LOCALRANKID") or not Slurm.detect(environ):
            return False
        size = config.read(environ, "SLURM_NTASKS") or config.read(environ, "SLURM_NPROCS")
        theirs = (config.read(environ, "SLURM_PROCID"), size)
        return theirs == (config.read(environ, "PMI_RANK"), config.read(environ, "PMI_SIZE"))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from PMI_* and MPI_LOCAL*."""
        ranks = read_ranks(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        control = control_port()
        job = environ.get("PMI_JOBID", "") or control
        host = control.rpartition(":")[0]
        return make_launch(environ, ranks, cls.name, master_addr=of_launcher(host, ranks, environ), job=job)


class Mvapich(Environment):
    """MVAPICH, which sets MV2_COMM_WORLD_*. Several hosts outside SLURM need SMDP_MASTER_ADDR."""

    name = "MVAPICH"
    variables = (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    )

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether mpirun of MVAPICH started this process."""
        return bool(config.read(environ, "MV2_COMM_WORLD_RANK"))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from MV2_COMM_WORLD_*."""
        world = "MV2_COMM_WORLD_"
        ranks = read_ranks(
            environ, world + "RANK", world + "SIZE", world + "LOCAL_RANK", world + "LOCAL_SIZE"
        )
        return make_launch(environ, ranks, cls.name, master_addr=first_host_of_job(environ))
