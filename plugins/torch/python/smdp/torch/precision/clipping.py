"""The norm of all gradients of a pipelined model, equal to that of one process."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from smdp.torch.mesh.cuts import Cut, cut_of, mark_cut
from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule, live
from smdp.torch.pipelining.tensors.values import weight_of
from smdp.torch.precision.norms import NormTable


def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale gradients so that their norm over all stages is at most `max_norm`.

    All ranks of a pipeline call it. Norms of single parameters are collected in the model's order, tied ones
    once, so the result has the bits of `torch.nn.utils.clip_grad_norm_` in one process. Parts of a parameter
    that is cut into slices or shards count as one parameter; all ranks that hold parts of it call this.

    Args:
        parameters: What `smdp.torch.pipeline()` gave, or its parameters. Those of another model are clipped
            as torch does it, and their gradients may be sparse.
        max_norm: Above 0.
        norm_type: As torch's; "inf" is the largest absolute value.
        error_if_nonfinite: Raise where the norm is infinite or not a number.
        foreach: Scale many gradients in one call; None: where torch finds it faster.

    Returns:
        The norm before clipping, the same on all ranks.

    Raises:
        RuntimeError: The norm is not finite, and that is an error.
        ValueError: No parameters, and it cannot be told which pipeline's.
    """
    pipe = parameters if isinstance(parameters, PipelinedModule) else None
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    own = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    pipe = pipe or _pipe_of(own)
    if pipe is None:
        cut = next(filter(None, map(cut_of, own)), None)
        own = [_with_dense_gradient(parameter) for parameter in own]
        if cut is None:
            return torch.nn.utils.clip_grad_norm_(own, max_norm, norm_type, error_if_nonfinite, foreach)
        total = _total_norm_without_stages(own, cut, float(norm_type))
    else:
        total = _total_norm(own, pipe, float(norm_type))
    if error_if_nonfinite and not bool(torch.isfinite(total)):
        raise RuntimeError(
            f"[smdp] the gradients' norm of order {norm_type} is {float(total)}, so it cannot be clipped to"
            f" {max_norm}. Look for an overflow, or pass error_if_nonfinite=False."
        )
    torch.nn.utils.clip_grads_with_norm_(own, max_norm, total, foreach)
    return total


def _with_dense_gradient(parameter: Tensor) -> Tensor:
    """Returns a tensor whose gradient is the rows of a sparse one, in its memory; else the parameter.

    torch's function does not take sparse gradients. Rows that are not there add nothing to the norm.
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
    # A rank that trains nothing, say of a frozen stage, takes part in the norm of the others.
    if not parameters and len(live) > 1:
        raise ValueError(
            "[smdp] clip_grad_norm_() got no parameters, and this process has several pipelines; give it the"
            " pipelined module instead"
        )
    return next(iter(live), None) if not parameters else None


def _total_norm(own: list[Tensor], pipe: PipelinedModule, order: float) -> Tensor:
    """Returns the norm over all stages; norms are collected in the model's order."""
    places = {name: place for place, name in enumerate(pipe.split.weights)}
    mesh = pipe.mesh
    table = NormTable(len(places), order, pipe.device)
    held = {}
    for parameter in own:
        weight = weight_of(parameter)
        if weight is None:
            continue
        held[places[weight.name]] = parameter
        if parameter.grad is None:
            continue
        # A tied weight counts where it is used first.
        first_stage = min(pipe.split.weights[weight.name])
        if pipe.schedule.rank_of[first_stage] == mesh.stage_rank:
            table.enter(places[weight.name], parameter.grad)
    table.join_parts(held, mesh)
    table.add_stages(mesh)
    return table.total()


def _total_norm_without_stages(own: list[Tensor], cut: Cut, order: float) -> Tensor:
    """Returns the norm of parameters of which some are cut, and none lies on another stage."""
    table = NormTable(len(own), order, own[0].device)
    for place, parameter in enumerate(own):
        if parameter.grad is not None:
            table.enter(place, parameter.grad)
    table.join_parts(dict(enumerate(own)), cut.mesh)
    return table.total()
