"""Joins and takes the slices of state dicts of a model with distributed modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdp.torch.mesh.cuts import Cut, cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.mesh.slices import Slices, even


def cuts_of(model: nn.Module) -> dict[str, Cut]:
    """Returns how the parameters of a model are cut, by all of their names; whole ones are left out."""
    named = model.named_parameters(remove_duplicate=False)
    return {name: cut for name, parameter in named if (cut := cut_of(parameter)) is not None}


def joined_state(
    part: Mapping[str, Any], model: nn.Module, mesh: ParallelMesh, *, to_first_only: bool
) -> dict[str, Any]:
    """Returns a state dict in which the slices of all ranks of the tensor-parallel group are joined.

    All ranks of the group must call this.

    Args:
        part: This rank's entries.
        model: The model with the parameters.
        mesh: The ranks and groups.
        to_first_only: Whether only the first rank of the group gets the entries; the others get an empty
            dict.
    """
    cuts = cuts_of(model)
    found: dict[str, Any] = {}
    joined: dict[int, Tensor] = {}
    keeps = not to_first_only or mesh.ranks("tp").index(mesh.rank) == 0
    for name, value in part.items():
        if name in cuts and isinstance(value, Tensor):
            # Tied entries share their memory, also after they have been joined.
            if value.data_ptr() not in joined:
                joined[value.data_ptr()] = joined_tensor(value, cuts[name], mesh)
            value = joined[value.data_ptr()]
        found[name] = value
    return found if keeps else {}


def joined_tensor(part: Tensor, cut: Cut, mesh: ParallelMesh) -> Tensor:
    """Returns the whole tensor of a slice. All ranks of the tensor-parallel group must call this."""
    group = mesh.group("tp")
    part = part.detach().contiguous()
    parts = [torch.empty_like(part) for _ in range(group.size())]
    dist.all_gather(parts, part, group=group)
    if cut.slices is None:
        return part
    dim, shape = cut.slices.dim, cut.slices.shape
    whole = part.new_empty(shape)
    for rank, each in enumerate(parts):
        Slices(dim, (even(shape[dim], rank, len(parts)),), shape).put(each, whole)
    return whole


def own_slices(values: Mapping[str, Any], model: nn.Module) -> dict[str, Any]:
    """Returns a state dict in which whole tensors are replaced by this rank's slices of them."""
    cuts = cuts_of(model)
    found = dict(values)
    for name, cut in cuts.items():
        given = found.get(name)
        if isinstance(given, Tensor) and cut.slices is not None and given.shape == cut.slices.shape:
            found[name] = cut.slices.take(given)
    return found
