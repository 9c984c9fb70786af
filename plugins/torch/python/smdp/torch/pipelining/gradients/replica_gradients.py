"""Gradients averaged over data-parallel replicas of a pipeline, each stage's as soon as they are complete."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class ReplicaGradients:
    """The data-parallel half of a hybrid.

    Args:
        parameters: This rank's, by name; all replicas begin with those of the first.
        buffers: This rank's, likewise.
        stages: Virtual stages that use each parameter.
        own: This rank's stages.
        mesh: Ranks and groups.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        buffers: Iterable[Tensor],
        stages: Mapping[str, frozenset[int]],
        own: set[int],
        mesh: ParallelMesh,
    ) -> None:
        self._mesh = mesh
        self._hooks: GradientHooks | None = None
        # Over which group the hooks reduce: after a new membership the mesh has another one.
        self._hooked: ProcessGroupSmdp | None = None
        self._parameters = dict(parameters)
        self._stages_of = {name: stages[name] & own for name in parameters}
        self._trained: list[Parameter] = []
        self._stages: list[frozenset[int]] = []
        self._done: set[int] = set()
        group = self._group
        if group is None:
            return
        for tensor in (*parameters.values(), *buffers):
            dist.broadcast(tensor.data, group=group, group_src=0)

    def abort(self, reason: str) -> None:
        """Let the other replicas know that this rank cannot go on: they may wait for its gradients."""
        if self._hooks is not None:
            self._hooks.reducer.abort(reason)

    def prepare(self) -> None:
        """Begin a step: parameters may have been frozen or thawed since the last one, on all replicas."""
        trained = [
            (name, parameter) for name, parameter in self._parameters.items() if parameter.requires_grad
        ]
        group = self._group
        is_same = [id(parameter) for _, parameter in trained] == list(map(id, self._trained))
        if group is None or (is_same and group is self._hooked):
            return
        self._hooked = group
        self._trained = [parameter for _, parameter in trained]
        self._stages = [self._stages_of[name] for name, _ in trained]
        if self._hooks is not None:
            self._hooks.close()
            self._hooks = None
        if trained and all(parameter.device.type == "cpu" for parameter in self._trained):
            self._hooks = GradientHooks(group.core, trained, is_wanted=lambda: False)

    def reduce(self, stage: int) -> None:
        """Begin with the gradients that are complete now that those of a stage are."""
        self._done.add(stage)
        if self._hooks is None:
            return
        with torch.no_grad():
            for index, (parameter, stages) in enumerate(zip(self._trained, self._stages, strict=True)):
                if stage in stages and stages <= self._done and parameter.grad is not None:
                    self._hooks.hand_over(index, parameter)

    def finish(self) -> None:
        """Wait until all gradients of the step are averages."""
        if not self._done:
            return
        self._done.clear()
        if self._hooks is not None:
            self._hooks.finish()
        elif (group := self._group) is not None:
            with torch.no_grad():
                for parameter in self._trained:
                    # All replicas run the same program: a gradient is there on all of them or on none.
                    if parameter.grad is not None:
                        dist.all_reduce(parameter.grad, group=group)
                        parameter.grad.div_(group.size())

    @property
    def _group(self) -> ProcessGroupSmdp | None:
        """The replicas of this rank's stages; None if there is one."""
        return self._mesh.group("rdp") if self._mesh.replicas > 1 else None
