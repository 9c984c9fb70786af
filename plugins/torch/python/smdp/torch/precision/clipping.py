"""The norm of all gradients of a pipelined model, equal to that of one process."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdp.torch.pipelining.pipelined.pipelined_module import PipelinedModule, live
from smdp.torch.pipelining.tensors.values import weight_of


def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Tensor:
    """Scale gradients so that their norm over all stages is at most `max_norm`.

    All ranks of a pipeline call it. Norms of single parameters are collected in the model's order, tied ones
    once, so the result has the bits of `torch.nn.utils.clip_grad_norm_` in one process.

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
        own = [_with_dense_gradient(parameter) for parameter in own]
        return torch.nn.utils.clip_grad_norm_(own, max_norm, norm_type, error_if_nonfinite, foreach)
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
    places = {name: place for place, name in enumerate(pipe.split.weights)}
    device = pipe.device
    # Each norm is filled in by one rank and is zero on the others, so their sum is exact.
    found = torch.zeros(2, len(places), device=device, dtype=torch.float64)
    dtype = torch.float32
    for parameter in own:
        weight = weight_of(parameter)
        if parameter.grad is None or weight is None:
            continue
        first_stage = min(pipe.split.weights[weight.name])
        if pipe.schedule.rank_of[first_stage] == pipe.mesh.stage_rank:
            norm = torch.linalg.vector_norm(parameter.grad, order)
            dtype = torch.promote_types(dtype, norm.dtype)
            found[0, places[weight.name]] = norm.double()
            found[1, places[weight.name]] = 1
    dist.all_reduce(found, group=pipe.mesh.group("pp"))
    norms = found[0][found[1] > 0].to(dtype)
    return torch.linalg.vector_norm(norms, order) if norms.numel() else norms.new_zeros(())
