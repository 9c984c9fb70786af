"""Replaces the parameters of a model by this rank's shards, unit by unit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn import Parameter

from smdp.torch.initialization.delayed_initialization import materialize
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.sharded_parameters.fsdp_groups import (
    FSDPMeshInfo,
    Group,
    ShardPlacementResult,
    describe,
    groups_of,
    placed,
    ranks_with_shards,
)
from smdp.torch.sharded_parameters.shard_groups import ShardGroups

_BUCKET = 250 << 20  # bytes of a broadcast, as in torch's DDP


class Shards:
    """The parameters of a model, of which each rank keeps its shards.

    The values of the first rank are used. Of a model without memory, each rank computes one unit at a time.

    Args:
        model: The model, which is changed in place.
        units: The modules that are gathered one by one.
        ranks: The ranks with shards and replicas.
        threshold: Smaller parameters stay whole.
        device: The device of a model without memory.
        dtype: The type in which units compute, if it is another one.
        reshard_after_forward: Whether units are released after forward.
        unused_parameters: Whether missing gradients are zero.

    Attributes:
        root: The model.
        units: The units.
        sizes: The number of parameters of each unit and of the rest of the model.
        averaged: The parameters that are reduced together, with the ranks that average them afterwards.
    """

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[nn.Module],
        ranks: ShardGroups,
        threshold: float,
        device: torch.device | str | None,
        *,
        dtype: torch.dtype | None,
        reshard_after_forward: bool,
        unused_parameters: bool,
    ) -> None:
        self._ranks = ranks
        self._threshold = threshold
        self._mesh = ranks.mesh()
        dtypes = dict.fromkeys(one.dtype for one in model.parameters())
        # torch gathers parameters together that have the same group, and reduces only gradients of one dtype.
        self._whole: dict[torch.dtype, FSDPMeshInfo] = {}
        self._sharded: dict[torch.dtype, FSDPMeshInfo] = {}
        for each in dtypes:
            mesh = ranks.mesh_beside() if self._sharded else self._mesh
            self._sharded[each] = ranks_with_shards(mesh)
            if any(self._is_small(one) for one in model.parameters()):
                self._whole[each] = ranks_with_shards(ranks.mesh_alone())
        names = {id(module): name for name, module in model.named_modules()}
        known: set[str] = set()
        self.sizes: dict[FSDPModule, int] = {}
        for module in (*units, model):
            if any(one.is_meta for one in module.parameters()):
                prefix = f"{names[id(module)]}." if names[id(module)] else ""
                known |= {prefix + name for name, _ in module.named_parameters(remove_duplicate=False)}
                materialize(model, known.__contains__, device)
            old = {name: one for name, one in module.named_parameters() if not isinstance(one, DTensor)}
            self._take_values([*old.values(), *(model.buffers() if module is model else ())])
            made = fully_shard(
                module,
                mesh=self._mesh,
                reshard_after_forward=reshard_after_forward if module is not model else None,
                shard_placement_fn=self._place,
                mp_policy=MixedPrecisionPolicy(dtype, None if dtype is None else torch.float32),
            )
            self.sizes[made] = sum(one.numel() for one in old.values())
            _keep_attributes(old, module)
        self.root: FSDPModule = made
        self.units = [one for one in self.sizes if one is not made]
        made.set_reduce_scatter_unused_params(unused_parameters)
        self.averaged: list[tuple[Group, ProcessGroupSmdp]] = []
        for group in groups_of(self.sizes):
            is_whole = any(group.mesh_info is each for each in self._whole.values())
            describe(group, self._mesh, is_whole=is_whole)
            self.averaged.append((group, ranks.everyone if is_whole else ranks.replicas))

    def release(self) -> None:
        """Replaces gathered parameters by this rank's shards, if they are still whole."""
        for one in (self.root, *self.units):
            one.reshard()

    def _is_small(self, parameter: Parameter) -> bool:
        return bool(parameter.numel() < self._threshold)

    def _place(self, parameter: Parameter) -> ShardPlacementResult:
        """Returns where the values of a parameter go."""
        if self._is_small(parameter):
            return placed(0, self._whole[parameter.dtype])
        return placed(dim_of_shards(parameter.shape, self._ranks.degree), self._sharded[parameter.dtype])

    def _take_values(self, tensors: Sequence[Tensor]) -> None:
        """Takes the first rank's values."""
        with torch.no_grad():
            for one in tensors:
                if not one.is_contiguous():  # torch shards only contiguous parameters
                    one.data = one.data.contiguous()
        if tensors:
            dist._broadcast_coalesced(self._ranks.everyone, [one.detach() for one in tensors], _BUCKET, 0)


def dim_of_shards(shape: Sequence[int], degree: int) -> int:
    """Returns the dimension along which a tensor is sharded: the first, unless it is too small.

    Other dimensions must be divisible, because torch pads only the first.
    """
    if shape[0] >= degree:
        return 0
    return next((dim for dim, size in enumerate(shape) if size >= degree and size % degree == 0), 0)


def _keep_attributes(old: Mapping[str, Parameter], module: nn.Module) -> None:
    """Gives shards the attributes that scripts and other packages have set on the parameters."""
    for name, shard in module.named_parameters():
        before = old.get(name)
        if before is not None and before is not shard:
            shard.__dict__.update(
                {key: value for key, value in before.__dict__.items() if key not in shard.__dict__}
            )
