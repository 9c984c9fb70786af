"""Averages gradients over the data-parallel replicas of a pipeline, stage by stage as they are complete."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.pipelining.gradients.group_reduction import GroupReduction
from smdp.torch.process_group.process_group import ProcessGroupSmdp

GroupOf = Callable[[str], ProcessGroupSmdp | None]
_Named: TypeAlias = list[tuple[str, Parameter]]
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
        tie_of: Returns the ranks of the pipeline that share a weight.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        buffers: Mapping[str, Tensor],
        stages: Mapping[str, frozenset[int]],
        own: set[int],
        group_of: GroupOf,
        tie_of: Callable[[str], tuple[int, ...]],
    ) -> None:
        self._group_of = group_of
        self._tie_of = tie_of
        self._parameters = dict(parameters)
        self._stages_of = {name: stages[name] & own for name in parameters}
        # Compared at each step: a parameter's group changes with the membership, its size when it is sliced,
        # and its dtype when it is cast.
        self._trained: list[_Trained] | None = None
        self._reductions: list[GroupReduction] = []
        self._kept: list[tuple[GroupReduction, ProcessGroupSmdp, _Named]] = []
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
        kept = {id(each) for _, _, members in self._kept for _, each in members}
        if not self.has_groups([(group, members) for _, group, members in self._kept]):
            raise RuntimeError(
                "[smdp] the placement of a pipeline has changed since its ShardedOptimizer was created."
                " Create the optimizer again after a change, and load its state."
            )
        trained: list[_Trained] = []
        averaged: dict[str, Parameter] = {}
        for name, parameter in self._parameters.items():
            group = self._group_of(name)
            if id(parameter) not in kept and parameter.requires_grad and group is not None:
                trained.append((id(parameter), parameter.dtype, parameter.shape, parameter.stride(), group))
                averaged[name] = parameter
        if trained == self._trained:
            return
        self._trained = trained
        self._reductions = []
        self._by_stage = {}
        for reduction, _, members in self._kept:
            self._add(reduction, members)
        for group, members in self.lists(averaged, None):
            self._add(GroupReduction(group, members), members)

    def lists(
        self, parameters: Mapping[str, Parameter], alone: ProcessGroupSmdp | None
    ) -> list[tuple[ProcessGroupSmdp, _Named]]:
        """Returns the parameters in the lists in which they are averaged, each with its group.

        Weights that are tied over the same ranks have a list of their own, in one order on these ranks.

        Args:
            parameters: The parameters by name.
            alone: A group of this rank, for parameters that no other rank holds.
        """
        found: dict[tuple[ProcessGroupSmdp, tuple[int, ...]], _Named] = {}
        for name, parameter in parameters.items():
            group = self._group_of(name) or alone
            assert group is not None
            found.setdefault((group, self._tie_of(name)), []).append((name, parameter))
        return [(group, members) for (group, _), members in found.items()]

    def has_groups(self, lists: Sequence[tuple[ProcessGroupSmdp, _Named]]) -> bool:
        """Returns whether the lists still have the groups of their parameters."""
        now = [(self._group_of(members[0][0]), group) for group, members in lists]
        return all(found is group or (found is None and group.size() == 1) for found, group in now)

    def keep(
        self, reductions: Sequence[GroupReduction], lists: Sequence[tuple[ProcessGroupSmdp, _Named]]
    ) -> None:
        """Averages these parameters in these reductions from now on, whether they are frozen or not."""
        self._kept = [
            (reduction, group, members) for reduction, (group, members) in zip(reductions, lists, strict=True)
        ]
        self._trained = None

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
            for reduction in self._reductions:
                reduction.deliver()

    def _add(self, reduction: GroupReduction, members: _Named) -> None:
        self._reductions.append(reduction)
        for index, (name, parameter) in enumerate(members):
            stages = self._stages_of[name]
            for stage in stages:
                self._by_stage.setdefault(stage, []).append((reduction, index, parameter, stages))
