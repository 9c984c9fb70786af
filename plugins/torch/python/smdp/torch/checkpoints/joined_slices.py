"""Whole tensors, each on one of the ranks that hold slices or shards of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from smdp.torch.checkpoints.divided_values import whole_shape
from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.mesh.slices import Slices


def owners_of(values: Mapping[str, Tensor], count: int) -> dict[str, int]:
    """Distributes whole tensors over ranks so that their bytes are balanced. All ranks get the same result.

    Args:
        values: Tensors by name, with this rank's slices of those that are divided.
        count: The number of ranks.

    Returns:
        The rank of each tensor by name, a position along the tensor axis.
    """
    held = [0] * count
    found = {}
    for name, value in values.items():
        found[name] = held.index(min(held))
        held[found[name]] += whole_bytes(value)
    return found


def whole_bytes(value: Tensor) -> int:
    """Returns the number of bytes of a tensor in one process."""
    return int(whole_shape(value).numel()) * int(value.element_size())


def joined_slices(
    values: Mapping[str, Tensor], owners: Mapping[str, int], mesh: ParallelMesh
) -> dict[str, Tensor]:
    """Sends each rank the slices of its tensors. Collective over the tensor axis.

    Args:
        values: Tensors by name, with this rank's slices of those that are divided.
        owners: See `owners_of()`.
        mesh: The ranks.

    Returns:
        The whole tensors of this rank by name, on the CPU. Those that are not divided share the memory of
        `values`.
    """
    ranks, group = mesh.ranks("tp"), mesh.group("tp")
    here = ranks.index(mesh.rank)
    # A range that several ranks hold is sent once.
    cuts = {name: cut for name, value in values.items() if (cut := cut_of(value)) is not None}
    sent = {name: slices for name, cut in cuts.items() if (slices := cut.counted_slices()) is not None}
    places: list[dict[str, Slices]] = [{}] * len(ranks)
    dist.all_gather_object(places, sent, group=group)
    found = {}
    for name, value in values.items():
        own, owner = value.detach().cpu(), owners[name]
        if all(name not in each for each in places):
            if owner == here:
                found[name] = own
        elif owner != here:
            if name in sent:
                dist.send(cuts[name].counted(own).contiguous(), ranks[owner], group=group)
        else:
            whole = torch.empty(whole_shape(value), dtype=own.dtype)
            for sender, rank in enumerate(ranks):
                slices = places[sender].get(name)
                if slices is None:
                    continue
                if sender == here:
                    part = cuts[name].counted(own)
                else:
                    part = torch.empty(_part_shape(slices), dtype=own.dtype)
                    dist.recv(part, rank, group=group)
                slices.put(part, whole)
            found[name] = whole
    return found


def joined_shards(values: Mapping[str, Tensor], owners: Mapping[str, int], place: int) -> dict[str, Tensor]:
    """Gathers tensors one by one, and keeps those of a rank. Collective over the ranks with shards.

    Args:
        values: Tensors by name; those in shards are DTensors.
        owners: See `owners_of()`.
        place: This rank's position among the ranks with shards.

    Returns:
        The whole tensors of this rank by name, on the CPU.
    """
    found = {}
    for name, value in values.items():
        whole = value.full_tensor() if isinstance(value, DTensor) else value
        if owners[name] == place:
            found[name] = whole.detach().cpu()
    return found


def _part_shape(slices: Slices) -> tuple[int, ...]:
    return (*slices.shape[: slices.dim], slices.length, *slices.shape[slices.dim + 1 :])
