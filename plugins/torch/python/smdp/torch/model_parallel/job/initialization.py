"""`smp.init` and `smp.shutdown`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from smdp import pipeline as schedules
from smdp.environments import Launch, detect, find
from smdp.environments.single import SingleProcess
from smdp.environments.torch_variables import set_torch_variables
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.model_parallel.job.state import Job, state

# Processes that a rank starts inherit this variable. They have the launcher's variables, but are not ranks.
_IN_JOB = "_SMDP_IN_MODEL_PARALLEL_JOB"


def init(config: Mapping[str, Any] | None = None) -> None:
    """Starts the job: checks the configuration, joins the other ranks and creates the groups.

    All ranks must call this.

    If torch.distributed is not initialized yet, it is initialized with smdp, for the ranks of the launcher.
    No device is selected. Once the job runs, a call without a configuration or with the same one does
    nothing. A call also does nothing in a process that a rank has started by multiprocessing, such as a
    DataLoader's worker, which imports the script.

    Args:
        config: Keys of the configuration; those in SM_HP_MP_PARAMETERS take precedence.

    Raises:
        ValueError: The configuration is wrong, does not fit the number of ranks, or differs from that of
            another rank; or the job already runs with a different one.
        smdp.SmdpError: Not all ranks have joined.
    """
    if state.job is not None and config is None:
        return
    wanted = Configuration.read(config)
    if state.job is not None:
        _check_same(wanted, state.cfg)
        return
    if multiprocessing.parent_process() is not None and _IN_JOB in os.environ:
        return
    launch = None if find() is SingleProcess else detect(needs_master=False)
    has_group = dist.is_initialized()
    world_size = dist.get_world_size() if has_group else launch.world_size if launch else 1
    _check(wanted, world_size)
    if not has_group:
        _start(wanted)
    try:
        state.job = _join(wanted, launch, owns_default_group=not has_group)
    except BaseException:
        if not has_group and dist.is_initialized():
            dist.destroy_process_group()
        raise
    os.environ[_IN_JOB] = "1"


def is_initialized() -> bool:
    """Returns whether the job runs: init() has been called, and shutdown() has not been called since."""
    return state.job is not None


def shutdown() -> None:
    """Leaves the job and ends what init() started; a torch.distributed initialized before init() is kept."""
    job = state.job
    if job is None:
        return
    shards = None if state.model is None else state.model.shards
    state.clear()
    os.environ.pop(_IN_JOB, None)
    if shards is not None:
        shards.leave_groups()
    job.mesh.close()
    if job.owns_default_group and dist.is_initialized():
        dist.destroy_process_group()


def _start(configuration: Configuration) -> None:
    """Initializes torch.distributed."""
    if configuration.ddp_port:
        os.environ.setdefault("MASTER_PORT", str(configuration.ddp_port))
    if set_torch_variables():
        dist.init_process_group("smdp")
    else:
        dist.init_process_group("smdp", store=dist.HashStore(), rank=0, world_size=1)


def _join(configuration: Configuration, launch: Launch | None, *, owns_default_group: bool) -> Job:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mesh = ParallelMesh.of_world(
        pp=configuration.partitions,
        tp=configuration.tensor_parallel_degree,
        strategy=configuration.placement_strategy,
    )
    told: list[Configuration] = [configuration] * world_size
    dist.all_gather_object(told, configuration, group=mesh.group("world"))
    for other, theirs in enumerate(told):
        if theirs != configuration:
            raise ValueError(
                f"[smdp] rank {other} called smp.init() with a different configuration from rank {rank}:"
                f" {_difference(theirs, configuration)}; the configuration must be the same on all ranks"
            )
    if configuration.partition_file and not configuration.load_partition and configuration.partitions > 1:
        on_every_rank(lambda: _check_writable(configuration.partition_file, rank), mesh.group("world"))
    mesh.make("mp", "dp", "pp", "tp", "rdp")
    if configuration.tensor_parallel_degree > 1:
        mesh.make_for_steps("tp", "rdp", "dp")
    # No rank may leave before all have created their groups, because torch's store may leave with it.
    dist.barrier(group=mesh.group("world"))
    core = mesh.group("world").core
    local_rank, local_size = core.local_rank, core.local_size
    # The launcher assigns devices by local rank, and a host of the launcher may appear as several hosts here.
    if launch is not None and (launch.rank, launch.world_size) == (rank, world_size):
        local_rank = local_rank if launch.local_rank is None else launch.local_rank
        local_size = local_size if launch.local_size is None else launch.local_size
    return Job(configuration, mesh, local_rank, local_size, owns_default_group)


def _check(configuration: Configuration, world_size: int) -> None:
    """Checks rules over several keys and the number of ranks, before this rank waits for others."""
    schedules.generate(
        configuration.schedule,
        stages=configuration.partitions,
        microbatches=configuration.microbatches,
        virtual_stages=configuration.virtual_stages or schedules.usual_virtual_stages(configuration.schedule),
        active_microbatches=configuration.active_microbatches,
    )
    partitions, tensor = configuration.partitions, configuration.tensor_parallel_degree
    if tensor > 1 and world_size % (partitions * tensor) != 0:
        raise ValueError(
            f"[smdp] partitions = {partitions} times tensor_parallel_degree = {tensor} does not divide the"
            f" {world_size} rank(s) of this job; start a multiple of {partitions * tensor} processes, for"
            f" example with `torchrun --nproc-per-node {partitions * tensor}`"
        )
    if world_size % partitions != 0:
        allowed = ", ".join(str(number) for number in range(1, world_size + 1) if world_size % number == 0)
        raise ValueError(
            f"[smdp] partitions = {partitions} does not divide the {world_size} rank(s) of this job; start a"
            f" multiple of {partitions} processes, for example with `torchrun --nproc-per-node {partitions}`"
            f" or `mpirun -np {partitions}`, or set partitions to one of: {allowed}"
        )
    degree, replicas = configuration.sharded_data_parallel_degree, world_size // (partitions * tensor)
    if replicas % degree != 0:
        raise ValueError(
            f"[smdp] sharded_data_parallel_degree = {degree} does not divide the {replicas} rank(s) with the"
            f" same slices of the model, which are the {world_size} rank(s) of this job by"
            f" tensor_parallel_degree = {tensor}; set a degree that divides them"
        )
    if world_size > partitions and not configuration.ddp:
        raise ValueError(
            f"[smdp] the job has {world_size} ranks and partitions = {partitions}, so the pipeline has"
            f' {world_size // partitions} replicas, which need data parallelism; set "ddp" to true, or start'
            f" {partitions} process(es)"
        )


def _check_writable(partition_file: str, rank: int) -> None:
    """Checks the folder of a file that rank 0 writes once the model is cut."""
    folder = Path(partition_file).absolute().parent
    if rank == 0 and not folder.is_dir():
        raise ValueError(
            f"[smdp] partition_file = {partition_file!r} cannot be written, because {folder} is not a folder;"
            " create it, or remove the key"
        )


def _check_same(wanted: Configuration, running: Configuration) -> None:
    if wanted != running:
        raise ValueError(
            "[smdp] smp.init() was already called with a different configuration:"
            f" {_difference(running, wanted)} (earlier, now); call it once, or call smp.shutdown() in between"
        )


def _difference(first: Configuration, second: Configuration) -> str:
    one, other = asdict(first), asdict(second)
    return ", ".join(
        f"{name} = {value!r} and {other[name]!r}" for name, value in one.items() if value != other[name]
    )
