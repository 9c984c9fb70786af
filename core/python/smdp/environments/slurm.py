"""Detects ranks started by SLURM's srun."""

from __future__ import annotations

import re
from collections.abc import Mapping

from smdp import config
from smdp.environments.base import Environment, Launch, Ranks, make_launch, read_ranks

_BRACKET = re.compile(r"\[([^\]]*)\]")


class Slurm(Environment):
    """SLURM's srun, with one task per rank. Rank 0 is on the first host of the step."""

    name = "SLURM"
    variables = (
        "SLURM_PROCID",
        "SLURM_NTASKS",
        "SLURM_LOCALID",
        "SLURM_NODEID",
        "SLURM_TASKS_PER_NODE",
        "SLURM_JOB_ID",
        "SLURM_STEP_ID",
        "SLURM_STEP_NUM_TASKS",
        "SLURM_JOB_NAME",
        "SLURM_JOB_NODELIST",
        "SLURM_STEP_NODELIST",
    )

    @classmethod
    def detect(cls, environ: Mapping[str, str]) -> bool:
        """Returns whether srun started this process as a task, and not as an interactive shell."""
        return bool(config.read(environ, "SLURM_PROCID")) and not cls._why_no_task(environ)

    @classmethod
    def why_not(cls, environ: Mapping[str, str]) -> str:
        """Returns what kind of SLURM process this is if it is not a task."""
        return cls._why_no_task(environ) if config.read(environ, "SLURM_JOB_ID") else ""

    @classmethod
    def _why_no_task(cls, environ: Mapping[str, str]) -> str:
        # sbatch sets SLURM_PROCID=0 for the script itself, and SLURM_NTASKS to what srun will start.
        if not config.read(environ, "SLURM_PROCID") or not config.read(environ, "SLURM_STEP_ID"):
            return "this is the shell of sbatch or salloc, not a task of srun (SLURM_STEP_ID is not set)"
        # The job's name is not sufficient: `srun -n 2 bash -c ...` and srun inside salloc have it as well.
        name = config.read(environ, "SLURM_JOB_NAME")
        if name in ("bash", "interactive") and config.read(environ, "SLURM_STEP_NUM_TASKS") in (None, "1"):
            return f"this is an interactive shell (SLURM_JOB_NAME={name}, one task)"
        return ""

    @classmethod
    def launch(cls, environ: Mapping[str, str]) -> Launch:
        """Returns this process's place in its job, from SLURM_*."""
        size = "SLURM_NTASKS" if config.read(environ, "SLURM_NTASKS") else "SLURM_NPROCS"
        if not config.read(environ, size):
            size = "SLURM_NTASKS"
        ranks = read_ranks(environ, "SLURM_PROCID", size, "SLURM_LOCALID")
        config.read_int(environ, "SLURM_STEP_NUM_TASKS", minimum=1)
        ranks = Ranks(ranks.rank, ranks.world_size, ranks.local_rank, _local_size(environ))
        job = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
        return make_launch(environ, ranks, cls.name, master_addr=first_host(environ), job=job)


def first_host(environ: Mapping[str, str]) -> str:
    """Returns the first host of the step, or else of the job; empty outside SLURM."""
    return expand_first(config.read(environ, "SLURM_STEP_NODELIST") or "") or first_host_of_job(environ)


def first_host_of_job(environ: Mapping[str, str]) -> str:
    """Returns the first host of the job; empty outside SLURM. For mpirun, whose daemons are steps."""
    names = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
    return expand_first(next(filter(None, (config.read(environ, name) for name in names)), ""))


def expand_first(nodelist: str) -> str:
    """Returns the first host of SLURM's compressed list.

    Example:
        >>> expand_first("node[001-004,7],login1")
        'node001'
    """
    depth = 0
    end = len(nodelist)
    for position, letter in enumerate(nodelist):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            end = position
            break
    # A name may contain several brackets, e.g. rack[0-1]node[01-16].
    return _BRACKET.sub(lambda match: re.split("[,-]", match.group(1))[0].strip(), nodelist[:end]).strip()


def _local_size(environ: Mapping[str, str]) -> int | None:
    """Returns this node's entry of, e.g., "2(x3),1": three nodes with two tasks, then one with one."""
    name = "SLURM_STEP_TASKS_PER_NODE"
    if not config.read(environ, name):
        name = "SLURM_TASKS_PER_NODE"
    text, node = config.read(environ, name), config.read_int(environ, "SLURM_NODEID")
    if text is None or node is None:
        return None
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\(x(\d+)\))?\s*", part)
        if match is None:
            raise config.invalid(name, text, "SLURM's notation, e.g. 2(x3),1")
        node -= int(match.group(2) or 1)
        if node < 0:
            return int(match.group(1))
    return None
