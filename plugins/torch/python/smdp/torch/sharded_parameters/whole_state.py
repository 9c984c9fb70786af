"""Makes a model in shards accept the state dict of the whole one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from smdp.torch.mesh.cuts import cut_of


def accept_whole_state(model: nn.Module) -> None:
    """Makes `load_state_dict()` of a model, and of its modules, take this rank's shards of whole tensors."""
    for module in model.modules():
        if any(isinstance(one, DTensor) for one in module._parameters.values()):
            module.register_load_state_dict_pre_hook(_take_shards)


def _take_shards(module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
    for name, own in module.named_parameters(recurse=False, remove_duplicate=False):
        given = state_dict.get(prefix + name)
        if not isinstance(own, DTensor) or not isinstance(given, Tensor) or isinstance(given, DTensor):
            continue
        cut = cut_of(own)
        if cut is not None and cut.slices is not None and given.shape == cut.slices.shape != own.shape:
            given = cut.slices.take(given)
        if given.shape == own.shape:
            state_dict[prefix + name] = like(own, shard_of(given, own))


def shard_of(whole: Tensor, own: DTensor) -> Tensor:
    """Returns this rank's part of a whole tensor that is distributed as another one is."""
    placement = own.placements[0]
    if not isinstance(placement, Shard):
        return whole
    ranks, rank = own.device_mesh.size(), own.device_mesh.get_local_rank()
    parts = torch.chunk(whole, ranks, placement.dim)
    return parts[rank] if rank < len(parts) else whole.narrow(placement.dim, 0, 0)


def like(own: DTensor, part: Tensor) -> DTensor:
    """Returns a tensor of which this rank has a part, and that is distributed as another one is."""
    made: DTensor = DTensor.from_local(
        part, own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=own.stride()
    )
    return made
