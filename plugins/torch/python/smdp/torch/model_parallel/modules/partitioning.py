"""Cuts a model according to the configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.job.configuration import Configuration
from smdp.torch.model_parallel.modules.manual_partition import ManualPartition, assigned
from smdp.torch.model_parallel.modules.offloading import offload_place
from smdp.torch.pipelining.engine.program import Program
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule
from smdp.torch.pipelining.pipelined.split_over_ranks import Placed, SplitOptions, split_over_ranks
from smdp.torch.pipelining.units.wording import Wording

SMP = Wording(
    split="smp.DistributedModel()",
    compiled="smp.DistributedModel() cannot compile a model",
    traced="Remove the key skip_tracing",
    step="call it in a function decorated with @smp.step",
    backward="the loss passed to model.backward(loss)",
)


@dataclass(frozen=True)
class Decision:
    """The partition of a model in an earlier job.

    Attributes:
        stages: The virtual stage of each unit, by its name.
        rank_of: The partition of each virtual stage. None: the schedule's own placement.
    """

    stages: Mapping[str, int]
    rank_of: tuple[int, ...] | None = None


def default_device() -> torch.device | None:
    """Returns the current GPU for models without values, or None if there is no GPU."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else None


def split(
    model: nn.Module,
    mesh: ParallelMesh,
    configuration: Configuration,
    example: tuple[tuple[Any, ...], dict[str, Any]] | None,
    decision: Decision | None,
    device: torch.device | None,
) -> PipelinedModule:
    """Cuts a model. Every rank of the job must call this.

    Args:
        model: The model, the same on all ranks.
        mesh: The ranks and groups of the job.
        configuration: The configuration of the job.
        example: Arguments of the model's forward for one microbatch. None: modules are weighed by their
            bytes.
        decision: The partition from a checkpoint. None: the configuration determines the partition.
        device: The device for a model that has no values yet. None: the current GPU, or the CPU.

    Raises:
        ValueError: The model cannot be cut; the message suggests a fix.
    """
    options = SplitOptions(
        stages=configuration.partitions,
        microbatches=configuration.microbatches,
        schedule=configuration.schedule,
        virtual_stages=configuration.virtual_stages,
        active_microbatches=configuration.active_microbatches,
        memory_weight=configuration.memory_weight,
        device=device or default_device(),
        seed=configuration.seed,
        is_in_lockstep=configuration.deterministic_server,
        wording=SMP,
        offload=offload_place(configuration, model, device or default_device()),
        horizon=configuration.activation_loading_horizon,
    )
    if example is not None:
        args, kwargs = example
        example = args, Program(model).without_cache(args, kwargs)
    manual = None
    if not configuration.auto_partition:
        manual = ManualPartition(model, configuration.default_partition, configuration.partitions)
    if decision is not None:
        return split_over_ranks(
            model,
            mesh,
            options,
            example,
            lambda trace: Placed(assigned(trace, decision.stages), decision.rank_of),
            None if manual is None else manual.is_divided,
        )
    if manual is None:
        return split_over_ranks(model, mesh, options, example)
    return split_over_ranks(model, mesh, options, example, manual.assign, manual.is_divided)
