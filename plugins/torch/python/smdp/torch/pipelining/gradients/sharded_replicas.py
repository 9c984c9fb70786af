"""The gradients of a pipeline's replicas, as a `ShardedOptimizer` takes them."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch.nn import Parameter

from smdp.torch.data_parallel.gradient_takers import Shards
from smdp.torch.pipelining.gradients.group_reduction import GroupReduction
from smdp.torch.pipelining.gradients.joined_reducers import JoinedReducers
from smdp.torch.pipelining.gradients.replica_gradients import ReplicaGradients
from smdp.torch.pipelining.gradients.tied_gradients import TiedGradients
from smdp.torch.pipelining.gradients.tied_shards import TiedShards
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.process_group.registered_parameters import Registered


class ShardedReplicas:
    """The `AveragedGradients` of this rank's stages.

    Args:
        replicas: Averages the gradients.
        tied: Adds the gradients of tied weights, which are averaged apart: all their stages then cut them at
            the same places.
        parameters: The parameters by name, the same on all replicas.
        alone: A group of this rank, in which a single replica averages.

    Attributes:
        parameters: The parameters, by index.
        registered: Name, dtype and element count of each.
        which: Tells users which parameters these are.
    """

    which = "Create the optimizer from the parameters() of the split model."

    def __init__(
        self,
        replicas: ReplicaGradients,
        tied: TiedGradients,
        parameters: Mapping[str, Parameter],
        alone: ProcessGroupSmdp | None,
    ) -> None:
        self._replicas = replicas
        self._tied = tied
        self._lists = replicas.lists(parameters, alone)
        named = [each for _, members in self._lists for each in members]
        self.parameters = [parameter for _, parameter in named]
        self.registered = [Registered(name, each.dtype, each.numel()) for name, each in named]
        self._reductions: list[GroupReduction] = []
        self._shards: Shards | None = None

    @property
    def shards(self) -> Shards | None:
        """The object that owns pieces of the means, or None if every rank has all means."""
        return self._shards

    @shards.setter
    def shards(self, shards: Shards) -> None:
        self._shards = shards
        for reduction in self._reductions:
            reduction.shards = shards
        self._tied.shard(TiedShards(shards, self.parameters))

    def is_current(self) -> bool:
        """Returns whether the replicas are those of the time when this object was created."""
        return self._replicas.has_groups(self._lists)

    def shard(self, scope: str, whole: Collection[int]) -> JoinedReducers:
        """Averages so that means are owned in shards from now on. All ranks of the job call it.

        Args:
            scope: "world" or "host".
            whole: Indices of the parameters that must not be cut.
        """
        first, joined = 0, []
        for group, members in self._lists:
            reduction = GroupReduction(group, members, scope=scope, first=first, whole=whole)
            self._reductions.append(reduction)
            joined.append((reduction.reducer, len(members)))
            first += len(members)
        self._replicas.keep(self._reductions, self._lists)
        return JoinedReducers(joined)
