"""The masters of a model with fp16, merged over slices and stages for a full checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.mesh.cuts import cut_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.model_parallel.job.state import state
from smdp.torch.model_parallel.modules.slices_of_state import joined_tensor
from smdp.torch.sharding.master_parameters import follow


def merged_masters() -> dict[str, Tensor]:
    """Returns the master of each fp16 parameter by name, on `mp_rank()` 0 only.

    All ranks of the model-parallel group must call this. There are none if the optimizer's state is sharded,
    or if there is no optimizer with masters.
    """
    mesh: ParallelMesh = state.running.mesh
    own: dict[str, Tensor] = {}
    is_first_slice = mesh.ranks("tp").index(mesh.rank) == 0
    for name, parameter, master in _own_masters():
        # A script may have changed the parameter since the last step.
        follow(master, parameter.detach())
        cut = cut_of(parameter)
        whole = master if cut is None else joined_tensor(master, cut, mesh)
        if is_first_slice:
            own[name] = whole.cpu()
    stages = mesh.group("pp")
    if stages.size() == 1 or not is_first_slice:
        return own
    is_first = mesh.stage_rank == 0
    parts: list[Any] | None = [None] * stages.size() if is_first else None
    dist.gather_object(own, parts, group=stages, group_dst=0)
    return {name: each for part in parts or [] for name, each in part.items()}


def with_masters(whole: Mapping[str, Any], masters: Mapping[str, Tensor]) -> dict[str, Any]:
    """Returns a state dict in which masters are in place of parameters, under all names of tied ones.

    Parameters that a hook of the module has dropped from the state dict, or renamed alone, stay as they are.
    """
    # A buffer may be a view of a parameter, with the same address.
    place = {
        (value.data_ptr(), value.shape): each
        for name, each in masters.items()
        if isinstance(value := whole.get(name), Tensor) and value.numel()
    }
    return {
        name: place.get((each.data_ptr(), each.shape), each) if isinstance(each, Tensor) else each
        for name, each in whole.items()
    }


def _own_masters() -> list[tuple[str, Parameter, Tensor]]:
    """Returns name, parameter and master of each fp16 parameter that this rank's optimizer updates."""
    model, optimizer = state.model, state.optimizer
    if optimizer is None or not optimizer.master_params_created or optimizer.redefined_params:
        return []
    if model.shards is not None:
        return []
    masters = {
        low: master
        for pair in zip(optimizer.fp16_groups, optimizer.fp32_from_fp16_groups, strict=True)
        for low, master in zip(*pair, strict=True)
    }
    return [
        (name, each, masters[each].detach())
        for name, each in model.named_parameters()
        if each in masters and each.dtype is torch.float16
    ]
