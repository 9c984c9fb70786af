"""The norm of gradients in shards, and clipping by it."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from smdp.torch.mesh.cuts import Cut, cut_of


def total_norm(parameters: Iterable[Tensor], order: float) -> Tensor:
    """Returns the norm of the gradients of the whole model. All ranks with its shards and slices call it.

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
        part = _counted(gradient, cut_of(parameter))
        # A whole gradient counts on one rank.
        if part.numel() and (isinstance(gradient.placements[0], Shard) or mesh.get_local_rank() == 0):
            norm = torch.linalg.vector_norm(part, order)
            dtype = torch.promote_types(dtype, norm.dtype)
            found[0, place], found[1, place] = norm.double(), 1
    joined = _joined(found, mesh.get_group(), order)
    cuts = {
        place: cut for place, one in enumerate(own) if (cut := cut_of(one)) is not None and cut.axis == "tp"
    }
    if cuts:
        places = list(cuts)
        joined[:, places] = _joined(joined[:, places], cuts[places[0]].mesh.step_group("tp"), order)
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


def _counted(gradient: DTensor, cut: Cut | None) -> Tensor:
    """Returns what counts of this rank's shard of a gradient, whose other slices are on other ranks."""
    part = gradient._local_tensor
    if cut is None or cut.is_counted is True:
        return part
    if isinstance(cut.is_counted, bool) or cut.slices is None:
        return part.new_empty(0)
    dim, placement = cut.slices.dim, gradient.placements[0]
    begin = 0
    if isinstance(placement, Shard) and placement.dim == dim:
        each = -(-gradient.shape[dim] // gradient.device_mesh.size())
        begin = each * gradient.device_mesh.get_local_rank()
    kept = [
        part.narrow(dim, low - begin, high - low)
        for low, high, number in cut.slices.within(begin, part.shape[dim])
        if cut.is_counted[number]
    ]
    return torch.cat(kept, dim) if kept else part.new_empty(0)


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
        if isinstance(one.grad, DTensor):
            part = one.grad._local_tensor.detach()
            part.grad = one.grad._local_tensor
            parts.append(part)
        else:
            parts.append(one)
    torch.nn.utils.clip_grads_with_norm_(parts, max_norm, total, foreach)
