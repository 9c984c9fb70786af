"""The norm of gradients in shards, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard


def total_norm(parameters: Iterable[Tensor], order: float) -> Tensor:
    """Returns the norm of the gradients of the whole model. All ranks with its shards call it.

    Args:
        parameters: Parameters of a ShardedDataParallel.
        order: The order of the norm.
    """
    own = [one for one in parameters if isinstance(one, DTensor)]
    if not own:
        return torch.zeros(())
    mesh = own[0].device_mesh
    found = torch.zeros(2, len(own), dtype=torch.float64, device=own[0].device)
    dtype = torch.float32
    for place, parameter in enumerate(own):
        gradient = parameter.grad
        if not isinstance(gradient, DTensor):
            continue
        part = gradient._local_tensor
        # A whole gradient counts on one rank.
        if part.numel() and (isinstance(gradient.placements[0], Shard) or mesh.get_local_rank() == 0):
            norm = torch.linalg.vector_norm(part, order)
            dtype = torch.promote_types(dtype, norm.dtype)
            found[0, place], found[1, place] = norm.double(), 1
    joined = _joined(found, mesh.get_group(), order)
    norms = joined[0][joined[1] > 0].to(dtype)
    return torch.linalg.vector_norm(norms, order) if norms.numel() else norms.new_zeros(())


def _joined(found: Tensor, group: dist.ProcessGroup, order: float) -> Tensor:
    """Returns the norms over the ranks of a group, and whether each has any part."""
    told = torch.empty(group.size(), *found.shape, dtype=found.dtype, device=found.device)
    dist.all_gather_single(told, found, group=group)
    norms, is_there = told.unbind(1)
    absent = norms.new_full((), math.inf if order < 0 else 0.0)
    return torch.stack(
        [torch.linalg.vector_norm(norms.where(is_there > 0, absent), order, 0), is_there.amax(0)]
    )


def clip_gradients(
    parameters: Iterable[Tensor], max_norm: float, order: float, foreach: bool | None = None
) -> Tensor:
    """Scales gradients so that their norm is at most `max_norm`, and returns the norm before.

    All ranks with the model's shards call it.
    """
    own = list(parameters)
    total = total_norm(own, order)
    scale_gradients(own, max_norm, total, foreach)
    return total


def scale_gradients(
    parameters: Iterable[Tensor], max_norm: float, total: Tensor, foreach: bool | None
) -> None:
    """Scales this rank's parts of gradients as torch's clipping does."""
    parts = []
    for one in parameters:
        if one.grad is not None:
            values = one.grad._local_tensor if isinstance(one.grad, DTensor) else one.grad
            part = values.detach()
            part.grad = values
            parts.append(part)
    torch.nn.utils.clip_grads_with_norm_(parts, max_norm, total, foreach)
