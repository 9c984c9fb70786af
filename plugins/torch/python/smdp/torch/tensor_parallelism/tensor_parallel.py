"""`smdp.torch.tensor_parallel()`, which divides the layers of a model over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.planning import plan_of
from smdp.torch.tensor_parallelism.preconditions import (
    check_degree,
    check_model,
    check_same,
    check_world,
    shapes_of,
)
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis

M = TypeVar("M", bound=nn.Module)


def tensor_parallel(
    model: M,
    degree: int,
    plan: str | Mapping[str, str] = "auto",
    *,
    mesh: ParallelMesh | None = None,
) -> M:
    """Divides the layers of a model over `degree` ranks, in place.

    Every rank of the job must call it with the same model. Consecutive ranks share a model. A job with
    k x `degree` ranks has k data-parallel replicas.

    Args:
        model: The model.
        degree: The number of ranks that share a model.
        plan: "auto", or words by patterns of module names, in which * stands for a part of a name.
        mesh: The ranks along all axes. Default: all ranks of the world.

    Returns:
        The model.

    Raises:
        ValueError: The model cannot be divided; the message suggests a fix. It is left unchanged.
        RuntimeError: Another rank raised such an error; the message names it.
    """
    if not dist.is_initialized():
        check_degree(degree)
        if degree == 1:
            return model
        check_world(degree, mesh)
    plans: list[TensorParallelPlan] = []

    def prepare() -> tuple[str, dict[str, tuple[int, ...]]]:
        check_degree(degree)
        check_world(degree, mesh)
        check_model(model)
        plans.append(plan_of(model, degree, plan))
        plans[0].check(model)
        return str(plans[0]), shapes_of(model)

    # An error on one rank is raised on all, so that no rank waits for another one.
    check_same(on_every_rank(prepare))
    if degree == 1:
        return model
    mesh = mesh or ParallelMesh.of_world(tp=degree)
    mesh.make_for_steps("tp", "rdp")
    axis = TensorAxis(mesh)
    with torch.no_grad():
        plans[0].apply(model, axis)
    return model


def tensor_parallel_plan(
    model: nn.Module, degree: int, plan: str | Mapping[str, str] = "auto"
) -> TensorParallelPlan:
    """Returns what `tensor_parallel()` would do to each module of a model. Nothing is changed.

    Raises:
        ValueError: There is no plan for this model, or it is not valid.
    """
    return plan_of(model, degree, plan)
