"""MPI launchers that speak PMI: MPICH, Intel MPI, MVAPICH."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import PLACEHOLDER, Environment, Launch, make_launch, read_ranks
from smdp.environments.hydra import control_port
from smdp.environments.master import of_launcher
from smdp.environments.slurm import Slurm, first_host_of_job


class Mpich(Environment):
    """PMI_*; on several hosts rank 0 is taken to be where mpiexec runs, and says so if it is not.

    Inside SLURM that is the first host of the allocation. Where mpiexec runs is known from MPICH's proxies;
    Intel MPI needs SMDP_MASTER_ADDR.
    """

    name = "MPICH or Intel MPI"
    variables = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", "PMI_JOBID", "PMI_PORT")
    master_hint = f"start with mpiexec -genv SMDP_MASTER_ADDR {PLACEHOLDER}"

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Tell whether a process manager with PMI is at work, other than srun."""
        return bool(config.read(environ, "PMI_RANK")) and not cls._is_by_srun(environ)

    @classmethod
    def why_not(cls, environ: Mapping[str, str]) -> str:
        """Say that srun has set its variables."""
        if cls._is_by_srun(environ):
            return "these are the variables of srun --mpi=pmi2; SLURM's own tell local ranks and hosts too"
        return super().why_not(environ)

    @classmethod
    def _is_by_srun(cls, environ: Mapping[str, str]) -> bool:
        # mpiexec may run as a step, and then its ranks carry both, too; but it numbers those of a host.
        if config.read(environ, "MPI_LOCALRANKID") or not Slurm.detect(environ):
            return False
        size = config.read(environ, "SLURM_NTASKS") or config.read(environ, "SLURM_NPROCS")
        theirs = (config.read(environ, "SLURM_PROCID"), size)
        return theirs == (config.read(environ, "PMI_RANK"), config.read(environ, "PMI_SIZE"))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Read PMI_* and MPI_LOCAL*."""
        ranks = read_ranks(environ, "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS")
        control = control_port()
        job = environ.get("PMI_JOBID", "") or control
        host = control.rpartition(":")[0]
        return make_launch(environ, ranks, cls.name, master_addr=of_launcher(host, ranks, environ), job=job)


class Mvapich(Environment):
    """MV2_COMM_WORLD_*; rank 0 is not to be found, so several hosts outside SLURM need SMDP_MASTER_ADDR."""

    name = "MVAPICH"
    variables = (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    )

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Tell whether mpirun of MVAPICH is at work."""
        return bool(config.read(environ, "MV2_COMM_WORLD_RANK"))

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Read MV2_COMM_WORLD_*."""
        world = "MV2_COMM_WORLD_"
        ranks = read_ranks(
            environ, world + "RANK", world + "SIZE", world + "LOCAL_RANK", world + "LOCAL_SIZE"
        )
        return make_launch(environ, ranks, cls.name, master_addr=first_host_of_job(environ))
