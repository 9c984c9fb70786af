"""Weights that several ranks of a pipeline use: their gradients are added once per step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.mesh.layout import Layout
from smdp.torch.pipelining.units.splitting import Split
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class TiedGradients:
    """Sums the gradients of tied weights, and starts all copies from the same values.

    Args:
        parameters: This rank's, by name.
        split: Which stages use them.
        layout: All ranks of the job make the groups together.
        rank_of: Rank, within the pipeline, of each virtual stage.
    """

    def __init__(
        self, parameters: Mapping[str, Parameter], split: Split, layout: Layout, rank_of: Sequence[int]
    ) -> None:
        self._before: dict[Parameter, Tensor | None] = {}
        self._groups: list[tuple[ProcessGroupSmdp | None, list[Parameter]]] = []
        made: dict[tuple[int, ...], ProcessGroupSmdp | None] = {}
        for stages in split.tied():
            ranks = tuple(sorted({rank_of[stage] for stage in stages}))
            if ranks not in made:
                made[ranks] = layout.group_of_stage_ranks(list(ranks)) if len(ranks) > 1 else None
            names = [name for name, users in split.weights.items() if users == frozenset(stages)]
            shared = [parameters[name] for name in names if name in parameters]
            self._groups.append((made[ranks], shared))
            if made[ranks] is not None:
                for parameter in shared:
                    dist.broadcast(parameter.data, group=made[ranks], group_src=0)

    def put_aside(self) -> None:
        """Start a step: what earlier steps have accumulated is summed already."""
        for group, parameters in self._groups:
            if group is not None:
                for parameter in parameters:
                    if parameter.requires_grad:
                        self._before[parameter] = parameter.grad
                        parameter.grad = None

    def reduce(self, index: int) -> None:
        """Add the gradients of one group over its ranks."""
        group, parameters = self._groups[index]
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if group is None or not trained:
            return
        with torch.no_grad():
            gradients = [
                torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                for parameter in trained
            ]
            for parameter, gradient in zip(trained, gradients, strict=True):
                gradient = gradient.contiguous()
                dist.all_reduce(gradient, group=group)
                before = self._before.pop(parameter, None)
                parameter.grad = gradient if before is None else before.add_(gradient)
