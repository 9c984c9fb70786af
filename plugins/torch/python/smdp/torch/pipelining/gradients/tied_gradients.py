"""Adds the gradients of weights that several ranks of a pipeline use, once per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.gradients.tied_shards import TiedShards
from smdp.torch.pipelining.units.splitting import Split
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class TiedGradients:
    """Sums the gradients of tied weights, and starts all copies with the same values.

    Args:
        parameters: This rank's parameters by name.
        split: Contains the stages that use each parameter.
        mesh: The ranks and groups; all ranks of the job create the groups together.
        rank_of: The rank, within the pipeline, of each virtual stage.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], split: Split, mesh: ParallelMesh, rank_of: Sequence[int]
    ) -> None:
        self._mesh = mesh
        self._before: dict[Parameter, Tensor | None] = {}
        self._shards: TiedShards | None = None
        # Ranks in the pipeline that share some weights, and those of the weights that this rank holds.
        self._tied: list[tuple[tuple[int, ...], list[Parameter]]] = []
        for stages in split.tied():
            places = tuple(sorted({rank_of[stage] for stage in stages}))
            names = [name for name, users in split.weights.items() if users == frozenset(stages)]
            shared = [parameters[name] for name in names if name in parameters]
            self._tied.append((places, shared))
            group = self._group(places)
            if group is not None:
                for parameter in shared:
                    dist.broadcast(parameter.data, group=group, group_src=0)

    def shard(self, shards: TiedShards) -> None:
        """Hands over the weights whose means are owned in shards from now on."""
        self._shards = shards

    def put_aside(self) -> None:
        """Starts a step by setting aside the gradients of earlier steps, which have already been summed."""
        for places, parameters in self._tied:
            if self._group(places) is not None:
                for parameter in parameters:
                    if not parameter.requires_grad:
                        continue
                    if self._shards is not None and self._shards.has(parameter):
                        self._shards.put_aside(parameter)
                    else:
                        self._before[parameter] = parameter.grad
                    parameter.grad = None

    def reduce(self, index: int) -> None:
        """Adds the gradients of one group of tied weights over its ranks."""
        places, parameters = self._tied[index]
        group = self._group(places)
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if group is None or not trained:
            return
        with torch.no_grad():
            for parameter in trained:
                if self._shards is not None and self._shards.has(parameter):
                    self._shards.reduce(parameter, group)
                    continue
                given = parameter.grad
                gradient = torch.zeros_like(parameter) if given is None else given.contiguous()
                dist.all_reduce(gradient, group=group)
                before = self._before.pop(parameter, None)
                parameter.grad = gradient if before is None else before.add_(gradient)

    def _group(self, places: tuple[int, ...]) -> ProcessGroupSmdp | None:
        """Returns the group of some ranks of the pipeline; None if it has one rank or lacks this one."""
        return self._mesh.group_of_stages(places) if len(places) > 1 else None
