"""The state of the unsharded optimizer: collected from the pieces of all ranks, and cut into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharding.shard_layout import ShardLayout
from smdp.torch.sharding.sharded_gradient import ShardOwners


def collect_state(
    inner: Optimizer,
    groups: Sequence[Mapping[str, Any]],
    pieces: Mapping[int, Sequence[Parameter]],
    index_of: Mapping[int, int],
    layout: ShardLayout,
    owners: ShardOwners,
    to: int,
) -> dict[str, Any] | None:
    """Returns the whole state on rank `to`, and None on the others. Collective, one tensor at a time."""
    rank = dist.get_rank(owners.group)
    whole: dict[str, Any] = {"state": {}, "param_groups": []}
    number = 0
    for group in groups:
        first = number
        for parameter in group["params"]:
            index = index_of[id(parameter)]
            own = [inner.state.get(piece, {}) for piece in pieces[index]]
            entry = _collected(parameter, index, own, layout, owners, to)
            if entry and rank == to:
                whole["state"][number] = entry
            number += 1
        options = {key: value for key, value in group.items() if key != "params"}
        whole["param_groups"].append({**options, "params": list(range(first, number))})
    return whole if rank == to else None


def _collected(
    parameter: Parameter,
    index: int,
    own: Sequence[Mapping[str, Any]],
    layout: ShardLayout,
    owners: ShardOwners,
    to: int,
) -> dict[str, Any]:
    kinds: dict[str, Any] = {}
    for state in own:
        for key, value in state.items():
            is_cut = isinstance(value, Tensor) and value.dim() == 1 and value.numel() > 1
            kinds[key] = value.dtype if is_cut else ("one", value)
    told: list[Any] = [None] * dist.get_world_size(owners.group)
    dist.all_gather_object(told, kinds, group=owners.group)
    keys: dict[str, Any] = {}
    for each in told:
        for key, kind in each.items():
            if key not in keys or isinstance(kind, torch.dtype):
                keys[key] = kind
    entry: dict[str, Any] = {}
    for key, kind in keys.items():
        if not isinstance(kind, torch.dtype):
            entry[key] = kind[1]
            continue
        found = torch.empty_strided(parameter.shape, parameter.stride(), dtype=kind).zero_()
        flat = torch.as_strided(found, (found.numel(),), (1,))
        for piece, state in zip(layout.pieces[index], own, strict=True):
            flat[piece.begin : piece.end] = state[key]
        if owners.copies > 1:
            flat.div_(owners.copies)
        dist.reduce(flat, to, group=owners.group)
        entry[key] = found
    return entry


def cut_state(
    inner: Optimizer,
    groups: Sequence[Mapping[str, Any]],
    pieces: Mapping[int, Sequence[Parameter]],
    index_of: Mapping[int, int],
    layout: ShardLayout,
    given: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Loads this rank's pieces of a whole state, and returns the groups with the options of the state.

    Raises:
        ValueError: The state has other groups.
    """
    theirs = given["param_groups"]
    if [len(one["params"]) for one in theirs] != [len(one["params"]) for one in groups]:
        raise ValueError(
            "[smdp] the loaded state has parameter groups of"
            f" {[len(one['params']) for one in theirs]} parameters, and this optimizer of"
            f" {[len(one['params']) for one in groups]}. Create the optimizer with the same groups as when"
            " the state was saved."
        )
    loaded: list[dict[str, Any]] = []
    for group, saved in zip(groups, theirs, strict=True):
        options = {key: value for key, value in saved.items() if key != "params"}
        loaded.append({**group, **options, "params": group["params"]})
        for parameter, number in zip(group["params"], saved["params"], strict=True):
            index = index_of[id(parameter)]
            whole = given["state"].get(number)
            for place, piece in enumerate(pieces[index]):
                inner.state.pop(piece, None)
                if whole is not None:
                    inner.state[piece] = layout.cut(index, place, whole, parameter)
    return loaded
