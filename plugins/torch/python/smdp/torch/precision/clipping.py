"""Gradient clipping by the norm over all stages and slices of a model."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from smdp.torch.mesh.cuts import cut_of, mark_cut
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule, live
from smdp.torch.pipelining.tensors.values import weight_of
from smdp.torch.precision.norms import NormTable
from smdp.torch.sharded_parameters.gradient_norm import scale_gradients, total_norm


def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scales gradients so that their norm over all stages is at most `max_norm`.

    All ranks of a pipeline must call it. The norms of single parameters are combined in the model's order,
    tied ones once, so the result has the same bits as `torch.nn.utils.clip_grad_norm_` in one process. The
    parts of a parameter that is cut into slices or shards count as one parameter, and all ranks that hold
    parts of it must call this function.

    Args:
        parameters: A `ShardedDataParallel`, the result of `smdp.torch.pipeline()` or
            `smdp.torch.tensor_parallel()`, or its parameters. The parameters of any other model are clipped
            as torch does, and their gradients may be sparse.
        max_norm: The largest norm, above 0.
        norm_type: The order of the norm, as in torch; "inf" for the largest absolute value.
        error_if_nonfinite: Whether to raise an error if the norm is infinite or NaN.
        foreach: Whether to scale many gradients in one call. With None, torch decides.

    Returns:
        The norm before clipping, the same on all ranks.

    Raises:
        RuntimeError: The norm is not finite, and `error_if_nonfinite` is set.
        ValueError: There are no parameters, and the process has several pipelines.
    """
    pipe = parameters if isinstance(parameters, PipelinedModule) else None
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    own = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    pipe = pipe or _pipe_of(own)
    if pipe is None and any(isinstance(one, DTensor) for one in own):
        total = total_norm(own, float(norm_type))
    elif pipe is None:
        cut = next(filter(None, map(cut_of, own)), None)
        own = [_with_dense_gradient(parameter) for parameter in own]
        if cut is None:
            return torch.nn.utils.clip_grad_norm_(own, max_norm, norm_type, error_if_nonfinite, foreach)
        total = _total_norm_without_stages(own, cut.mesh, float(norm_type), own[0].device)
    else:
        total = _total_norm(own, pipe, float(norm_type))
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise RuntimeError(
            f"[smdp] the norm of order {norm_type} of the gradients is {float(total)} and cannot be clipped"
            f" to {max_norm}. Look for an overflow, or pass error_if_nonfinite=False."
        )
    scale_gradients(own, max_norm, total, foreach)
    return total


def check_max_norm(max_norm: float) -> None:
    """Checks the norm to which master gradients are clipped.

    Raises:
        ValueError: It is not above 0.
    """
    if not max_norm > 0:
        raise ValueError(f"[smdp] clip_master_grads: max_norm is {max_norm!r}; allowed: above 0.")


def wide_norm_of_gradients(parameters: Iterable[Tensor], model: nn.Module, order: float) -> Tensor:
    """Returns the norm of the gradients of all stages, slices and shards, with 32 bits. Collective.

    A parameter counts once, however many ranks hold it, and the result is that of one process.

    Args:
        parameters: This rank's parameters.
        model: The model, wrapped or not.
        order: The order of the norm.
    """
    own = [_with_dense_gradient(parameter) for parameter in parameters]
    if isinstance(model, PipelinedModule):
        return _total_norm(own, model, order, is_wide=True)
    cut = next(filter(None, map(cut_of, own)), None)
    device = own[0].device if own else torch.device("cpu")
    return _total_norm_without_stages(own, None if cut is None else cut.mesh, order, device, is_wide=True)


def _with_dense_gradient(parameter: Tensor) -> Tensor:
    """Returns a stand-in with the values of a sparse gradient as its gradient, or the parameter itself.

    torch's clipping does not accept sparse gradients. The stand-in shares memory with the sparse gradient.
    Missing rows add nothing to the norm.
    """
    gradient = parameter.grad
    if gradient is None or not gradient.is_sparse:
        return parameter
    parameter.grad = gradient = gradient.coalesce()
    values = gradient.values()
    stand_in = values.detach()
    stand_in.grad = values
    if (cut := cut_of(parameter)) is not None:
        mark_cut(stand_in, cut)
    return stand_in


def _pipe_of(parameters: list[Tensor]) -> PipelinedModule | None:
    for parameter in parameters:
        weight = weight_of(parameter)
        pipe = None if weight is None or weight.pipe is None else weight.pipe()
        if pipe is not None:
            return pipe  # type: ignore[no-any-return]
    # A rank without trained parameters, as of a frozen stage, takes part in the norm of the others.
    if not parameters and len(live) > 1:
        raise ValueError(
            "[smdp] clip_grad_norm_() got no parameters, and this process has several pipelines. Pass the"
            " pipelined module instead."
        )
    return next(iter(live), None) if not parameters else None


def _total_norm(own: list[Tensor], pipe: PipelinedModule, order: float, *, is_wide: bool = False) -> Tensor:
    """Returns the norm over all stages, with the norms of parameters combined in the model's order."""
    places = {name: place for place, name in enumerate(pipe.split.weights)}
    mesh = pipe.mesh
    table = NormTable(len(places), order, pipe.device, is_wide=is_wide)
    held = {}
    for parameter in own:
        weight = weight_of(parameter)
        if weight is None:
            continue
        held[places[weight.name]] = parameter
        if parameter.grad is None:
            continue
        # A tied weight counts on the first stage that uses it.
        first_stage = min(pipe.split.weights[weight.name])
        if pipe.schedule.rank_of[first_stage] == mesh.stage_rank:
            table.enter(places[weight.name], parameter)
    table.join_parts(held, mesh)
    table.add_stages(mesh)
    return table.total()


def _total_norm_without_stages(
    own: list[Tensor],
    mesh: ParallelMesh | None,
    order: float,
    device: torch.device,
    *,
    is_wide: bool = False,
) -> Tensor:
    """Returns the norm of parameters that lie on a single stage, some of which may be cut."""
    table = NormTable(len(own), order, device, is_wide=is_wide)
    for place, parameter in enumerate(own):
        table.enter(place, parameter)
    if mesh is not None:
        table.join_parts(dict(enumerate(own)), mesh)
    return table.total()
