"""The reductions of a rank's gradients: over replicas, and over the stages that tie weights."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor
from torch.nn import Parameter

from smdp.torch.mesh.averages import average_of
from smdp.torch.mesh.parallel_mesh import ParallelMesh
from smdp.torch.pipelining.gradients.replica_gradients import ReplicaGradients
from smdp.torch.pipelining.gradients.sharded_replicas import ShardedReplicas
from smdp.torch.pipelining.gradients.tied_gradients import TiedGradients
from smdp.torch.pipelining.units.splitting import Split
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class Reductions:
    """Creates the reductions of one pipeline, which start all copies of a weight with the same values.

    Args:
        parameters: This rank's parameters by name.
        buffers: This rank's buffers by name.
        split: Contains the stages that use each parameter.
        own: The stages of this rank.
        mesh: The ranks and groups.
        rank_of: The rank, within the pipeline, of each virtual stage.

    Attributes:
        replicas: Averages over replicas.
        tied: Adds over stages.
    """

    def __init__(
        self,
        parameters: Mapping[str, Parameter],
        buffers: Mapping[str, Tensor],
        split: Split,
        own: set[int],
        mesh: ParallelMesh,
        rank_of: Sequence[int],
    ) -> None:
        self._parameters = parameters
        self._mesh = mesh
        self._sharded: ShardedReplicas | None = None

        def replicas_of(name: str) -> ProcessGroupSmdp | None:
            # Where tensor-parallel ranks have the same batch, their gradients of whole weights are the same.
            value = parameters.get(name)
            axis = "rdp" if value is None else average_of(value)
            return mesh.step_group(axis) if len(mesh.ranks(axis)) > 1 else None

        def tie_of(name: str) -> tuple[int, ...]:
            return tuple(sorted({rank_of[stage] for stage in split.weights[name]}))

        self.replicas = ReplicaGradients(parameters, buffers, split.weights, own, replicas_of, tie_of)
        self.tied = TiedGradients(parameters, split, mesh, rank_of)

    def shardable(self, feature: str, trained: Collection[Parameter]) -> ShardedReplicas:
        """Returns the gradients that replicas average, of which a feature may own pieces. Collective.

        Args:
            feature: The name of the feature, for messages.
            trained: Parameters that must be among them although they are frozen.

        Raises:
            ValueError: A parameter is on a GPU.
        """
        if self._sharded is not None and self._sharded.shards is not None and self._sharded.is_current():
            return self._sharded
        wanted = set(trained)
        found = {
            name: each for name, each in self._parameters.items() if each.requires_grad or each in wanted
        }
        for name, each in found.items():
            if not each.is_cpu:
                raise ValueError(
                    f"[smdp] {feature}: parameter {name!r} is on {each.device}, which is not supported yet."
                    " Use the optimizer itself, without sharding."
                )
        mesh = self._mesh
        self._sharded = ShardedReplicas(
            self.replicas, self.tied, found, mesh.step_group("rdp"), lambda each: mesh.group(average_of(each))
        )
        return self._sharded
