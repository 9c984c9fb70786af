"""`smdp.torch.tensor_parallel()`, which divides the layers of a model over ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

from smdp.torch.initialization.delayed_initialization import materialize, record_initialization
from smdp.torch.mesh.agreement import on_every_rank
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.tensor_parallelism.derivation.derive import Derivation
from smdp.torch.tensor_parallelism.earlier_uses import check_earlier_uses
from smdp.torch.tensor_parallelism.host_span import warn_across_hosts
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.planning import derivation_of, needs_derivation, plan_of
from smdp.torch.tensor_parallelism.preconditions import (
    check_model,
    check_ranks,
    check_same,
    shapes_of,
)
from smdp.torch.tensor_parallelism.same_forwards import SameForwards
from smdp.torch.tensor_parallelism.same_parameters import SameParameters
from smdp.torch.tensor_parallelism.same_values import take_same_values
from smdp.torch.tensor_parallelism.sequence_plan import sequence_plan_of
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis
from smdp.torch.tensor_parallelism.whole_model_methods import refuse_whole_model_methods
from smdp.torch.tensor_parallelism.whole_state_dicts import accept_whole_state

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

    Ranks that share a model start with the values of the first of them, and later take its random state in
    each forward. They must read the same batches, which is checked in the first forward. A model that was
    built in `delayed_initialization()` gets the values of this rank's slices, one tensor after another.

    An optimizer that was made before keeps working if it has not stepped yet and the model has memory.
    `smdp.torch.DistributedDataParallel` goes around the divided model.

    Args:
        model: The model.
        degree: The number of ranks that share a model.
        plan: "auto", or words by patterns of module names, in which * stands for a part of a name.
        sequence_parallel: Whether each rank holds a slice of the sequence between divided layers in
            training, which divides the memory of norms, dropouts and residual additions by `degree`.
            Layers must stand in a ModuleList, and the length of sequences must be a multiple of `degree`.
            What a model returns from between these layers, as with `output_hidden_states`, is this rank's
            slice.
        mesh: The ranks along all axes. Default: all ranks of the world.

    Returns:
        The model.

    Raises:
        ValueError: The model cannot be divided; the message suggests a fix. It is left unchanged.
    """
    if degree == 1 and not dist.is_initialized():
        return model
    check_ranks(degree, mesh)
    found = agreed_plan(model, degree, plan, sequence_parallel=sequence_parallel)
    if degree == 1:
        return model
    sequence = sequence_plan_of(model, found) if sequence_parallel else None
    axis = divide_model(model, found, mesh or ParallelMesh.of_world(tp=degree))
    if sequence is not None:
        with torch.no_grad():
            sequence.apply(model, axis)
    if any(tensor.is_meta for tensor in (*model.parameters(), *model.buffers())):
        materialize(model, lambda name: True)
    model.register_forward_pre_hook(SameForwards(axis, model), with_kwargs=True)
    model.register_forward_hook(SameParameters(axis, model))
    return model


def agreed_plan(
    model: nn.Module, degree: int, plan: str | Mapping[str, str], *, sequence_parallel: bool = False
) -> TensorParallelPlan:
    """Returns the plan of a model, after checks that it can be applied. Collective over all ranks of the job.

    Raises:
        ValueError: The model cannot be divided, or the ranks have different plans. Nothing is changed.
        RuntimeError: The model cannot be divided on another rank.
    """

    def needed() -> tuple[str, dict[str, tuple[int, ...]], bool]:
        check_model(model)
        return "", shapes_of(model), needs_derivation(model, degree, plan)

    def checked() -> tuple[str, dict[str, tuple[int, ...]]]:
        found = plan_of(model, degree, plan, derived)
        found.check(model)
        check_earlier_uses(
            {
                f"{name}.{own}" if name else own: parameter
                for name in found.actions
                for own, parameter in model.get_submodule(name).named_parameters(recurse=False)
            }
        )
        made.append(found)
        if sequence_parallel and degree > 1:
            sequence_plan_of(model, found)
        return f"{found}{', sequence parallel' if sequence_parallel else ''}", shapes_of(model)

    made: list[TensorParallelPlan] = []
    derived: Derivation | None = None
    # An error on one rank is raised on all, so that no rank waits for another one.
    told = on_every_rank(needed)
    check_same([(text, shapes) for text, shapes, _ in told])
    if any(is_needed for _, _, is_needed in told):
        # One rank decides for all, because a trial may depend on random numbers or on time.
        derived = on_every_rank(lambda: derivation_of(model, degree) if dist.get_rank() == 0 else None)[0]
    check_same(on_every_rank(checked))
    return made[0]


def divide_model(model: nn.Module, plan: TensorParallelPlan, mesh: ParallelMesh) -> TensorAxis:
    """Applies a plan to a model. Collective over all ranks of the job.

    Parameters without memory become slices without memory, whose values `materialize()` computes.

    Returns:
        The ranks that hold the slices.

    Raises:
        ValueError: The ranks have built the model with different seeds, without memory.
        smdp.SmdpError: The values of a parameter without memory are unknown. The model is left unchanged.
    """
    record_initialization(model)
    mesh.make_for_steps("tp", "rdp")
    axis = TensorAxis(mesh)
    warn_across_hosts(model, plan, axis)
    take_same_values(model, axis)
    with torch.no_grad():
        plan.apply(model, axis)
    accept_whole_state(model)
    refuse_whole_model_methods(model)
    return axis


def tensor_parallel_plan(
    model: nn.Module, degree: int, plan: str | Mapping[str, str] = "auto"
) -> TensorParallelPlan:
    """Returns what `tensor_parallel()` would do to each module of a model. Nothing is changed.

    Raises:
        ValueError: There is no plan for this model, or it is not valid.
    """
    return plan_of(model, degree, plan)
