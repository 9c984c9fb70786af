"""Averages gradients over the data-parallel replicas of a pipeline, stage by stage as they are complete."""

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
    """The `GradientReduction` over replicas.

    Args:
        parameters: This rank's parameters by name; all replicas start with those of the first.
        buffers: This rank's buffers by name; likewise.
        stages: The virtual stages that use each parameter.
        own: The stages of this rank.
        group_of: Returns the group of ranks that hold the same values under a name, or None if there are no
            others. The group of a sliced weight is smaller than that of a whole one.
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
        # Compared at each step: a parameter's group changes with the membership, its size when it is sliced,
        # and its dtype when it is cast.
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
        """Aborts the reductions on the other replicas, which may be waiting for gradients of this rank."""
        for reduction in self._reductions:
            reduction.abort(reason)

    def prepare(self) -> None:
        """Starts a step. Parameters may have been frozen or unfrozen since the last step, on all replicas."""
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
        """Starts to average the gradients that are complete now that a stage has ended its backward."""
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
