"""A process that was started without a launcher."""

from __future__ import annotations

from collections.abc import Mapping

from smdp import config
from smdp.environments.base import LOOPBACK, Environment, Launch


class SingleProcess(Environment):
    """A world of one process."""

    name = "single process"
    variables = ()

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns True, because this is the fallback if no launcher is detected."""
        return True

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns rank 0 of 1."""
        return Launch(0, 1, 0, 1, LOOPBACK, 0, cls.name)

    @classmethod
    def cost(cls, environ: Mapping[str, str]) -> str:
        """Returns a warning with the fix if variables hint at a job of several processes; otherwise empty."""
        reason = _why_alone(environ)
        return reason and f"no launcher has started this process, so it trains alone: {reason}"


def _why_alone(environ: Mapping[str, str]) -> str:
    tasks = config.read(environ, "SLURM_NTASKS")
    if config.read(environ, "SLURM_JOB_ID") and tasks not in (None, "1"):
        return (
            f"SLURM_NTASKS={tasks} tasks were requested and are idle; start the script with srun, "
            "torchrun or mpirun in the sbatch file"
        )
    # `accelerate launch --cpu` sets these for several processes, but starts only one of them.
    if all(config.read(environ, name) for name in ("ACCELERATE_USE_CPU", "MASTER_ADDR", "MASTER_PORT")):
        return (
            "on CPUs, accelerate launch starts several processes only with mpirun, through its option "
            "--mpirun_hostfile FILE; use that, or start the script with `smdp run -n N`"
        )
    for name in ("PET_NNODES", "PET_NPROC_PER_NODE"):
        value = config.read(environ, name)
        if value not in (None, "1", "1:1"):
            return (
                f"{name}={value} is an option of torchrun; start the script with torchrun instead of python"
            )
    for rank, size in (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
    ):
        ranks = config.read(environ, size)
        if ranks not in (None, "1"):
            return f"{size}={ranks} is set but {rank} is not; set both or neither"
    if (number := config.read(environ, "RANK")) not in (None, "0"):
        return f"RANK={number} is set but WORLD_SIZE is not; set both or neither"
    return ""
