"""Gradients averaged over data-parallel replicas of a pipeline, each stage's as soon as they are complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.pipelining.gradients.group_reduction import GroupReduction
from smdp.torch.process_group.process_group import ProcessGroupSmdp

GroupOf = Callable[[str], ProcessGroupSmdp | None]
# A parameter's id, dtype, shape and strides, and its group.
_Trained: TypeAlias = tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...], ProcessGroupSmdp]


class ReplicaGradients:
    """The `GradientReduction` of replicas.

    Args:
        parameters: This rank's, by name; all replicas begin with those of the first.
        buffers: This rank's, likewise.
        stages: Virtual stages that use each parameter.
        own: This rank's stages.
        group_of: Returns the ranks that hold the same values under a name as this one does; None: no others.
            For a slice of a weight these are fewer than for a weight that is whole.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        buffers: Mapping[str, Tensor],
        stages: Mapping[str, frozenset[int]],
        own: set[int],
        group_of: GroupOf,
    ) -> None:
        self._group_of = group_of
        self._parameters = dict(parameters)
        self._stages_of = {name: stages[name] & own for name in parameters}
        # What the reductions are for. After a new membership a parameter has another group; one that was
        # cut has another size, and one that was cast another dtype.
        self._trained: list[_Trained] = []
        self._reductions: list[GroupReduction] = []
        # By stage: (reduction, index in it, parameter, all stages that add to its gradient).
        self._by_stage: dict[int, list[tuple[GroupReduction, int, Parameter, frozenset[int]]]] = {}
        self._done: set[int] = set()
        for name, tensor in (*parameters.items(), *buffers.items()):
            group = group_of(name)
            if group is not None:
                dist.broadcast(tensor.data, group=group, group_src=0)

    def abort(self, reason: str) -> None:
        """Lets the other replicas know that this rank cannot go on: they may wait for its gradients."""
        for reduction in self._reductions:
            reduction.abort(reason)

    def prepare(self) -> None:
        """Begins a step: parameters may have been frozen or thawed since the last one, on all replicas."""
        trained: list[_Trained] = []
        grouped: dict[ProcessGroupSmdp, list[tuple[str, Parameter]]] = {}
        for name, parameter in self._parameters.items():
            group = self._group_of(name)
            if parameter.requires_grad and group is not None:
                trained.append((id(parameter), parameter.dtype, parameter.shape, parameter.stride(), group))
                grouped.setdefault(group, []).append((name, parameter))
        if trained == self._trained:
            return
        self._trained = trained
        self._reductions = []
        self._by_stage = {}
        for group, members in grouped.items():
            reduction = GroupReduction(group, members)
            self._reductions.append(reduction)
            for index, (name, parameter) in enumerate(members):
                stages = self._stages_of[name]
                for stage in stages:
                    self._by_stage.setdefault(stage, []).append((reduction, index, parameter, stages))

    def reduce(self, stage: int) -> None:
        """Begins with the gradients that are complete now that those of a stage are."""
        self._done.add(stage)
        with torch.no_grad():
            for reduction, index, parameter, stages in self._by_stage.get(stage, ()):
                if stages <= self._done and parameter.grad is not None:
                    reduction.hand_over(index)

    def finish(self) -> None:
        """Waits until all gradients of the step are averages."""
        if not self._done:
            return
        self._done.clear()
        with torch.no_grad():
            for reduction in self._reductions:
                reduction.finish()
