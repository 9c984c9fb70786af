"""`smdp.torch.tensor_parallel()`, which divides the layers of a model over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
from torch import nn

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.tensor_parallelism.host_span import warn_across_hosts
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.planning import plan_of
from smdp.torch.tensor_parallelism.sequence_plan import sequence_plan_of
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

M = TypeVar("M", bound=nn.Module)


def tensor_parallel(
    model: M,
    degree: int,
    plan: str | Mapping[str, str] = "auto",
    *,
    sequence_parallel: bool = False,
    mesh: ParallelMesh | None = None,
) -> M:
    """Divides the layers of a model over `degree` ranks, in place.

    Every rank of the job must call it with the same model. Consecutive ranks share a model. A job with
    k x `degree` ranks has k data-parallel replicas.

    Args:
        model: The model.
        degree: The number of ranks that share a model.
        plan: "auto", or words by patterns of module names, in which * stands for a part of a name.
        sequence_parallel: Whether each rank holds a slice of the sequence between divided layers in
            training, which divides the memory of norms, dropouts and residual additions by `degree`.
            Layers must stand in a ModuleList, and the length of sequences must be a multiple of `degree`.
        mesh: The ranks along all axes. Default: all ranks of the world.

    Returns:
        The model.

    Raises:
        ValueError: The model cannot be divided; the message suggests a fix. It is left unchanged.
    """
    if any(cut_of(parameter) is not None for parameter in model.parameters()):
        raise ValueError("[smdp] tensor_parallel: this model has already been divided. Build a new model.")
    found = plan_of(model, degree, plan)
    found.check(model)
    sequence = sequence_plan_of(model, found) if sequence_parallel else None
    mesh = mesh or ParallelMesh.of_world(tp=degree)
    plans = on_every_rank(lambda: f"{found}{', sequence parallel' if sequence else ''}")
    if any(other != plans[0] for other in plans):
        rank = next(rank for rank, other in enumerate(plans) if other != plans[0])
        raise ValueError(
            f"[smdp] tensor_parallel: rank {rank} has another plan than rank 0. Pass the same model, degree"
            f" and plan on all ranks. Rank 0:\n{plans[0]}\nRank {rank}:\n{plans[rank]}"
        )
    mesh.make_for_steps("tp", "rdp")
    axis = TensorAxis(mesh)
    warn_across_hosts(model, found, axis)
    with torch.no_grad():
        found.apply(model, axis)
        if sequence is not None:
            sequence.apply(model, axis)
    return model


def tensor_parallel_plan(
    model: nn.Module, degree: int, plan: str | Mapping[str, str] = "auto"
) -> TensorParallelPlan:
    """Returns what `tensor_parallel()` would do to each module of a model. Nothing is changed.

    Raises:
        ValueError: There is no plan for this model, or it is not valid.
    """
    return plan_of(model, degree, plan)
