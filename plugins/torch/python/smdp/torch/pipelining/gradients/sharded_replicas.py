"""The gradients of a pipeline's replicas, as a `ShardedOptimizer` takes them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from torch import nn
from torch.nn import Parameter

from smdp import _core
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.gradient_takers import Shards
from smdp.torch.pipelining.gradients.group_reduction import GroupReduction
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
        script_group: Returns the group of a parameter's replicas for communication outside of steps.

    Attributes:
        parameters: The parameters, by index.
        registered: Name, dtype and element count of each.
        counts: The number of parameters in each list.
        groups: The ranks that average each list.
        hooks: Empty, because the schedule hands over gradients.
        called: None, because steps do not begin with a forward.
        which: Tells users which parameters these are.
    """

    which = "Create the optimizer from the parameters() of the split model."

    def __init__(
        self,
        replicas: ReplicaGradients,
        tied: TiedGradients,
        parameters: Mapping[str, Parameter],
        alone: ProcessGroupSmdp | None,
        script_group: Callable[[Parameter], ProcessGroupSmdp],
    ) -> None:
        self._replicas = replicas
        self._tied = tied
        self._lists = replicas.lists(parameters, alone)
        named = [each for _, members in self._lists for each in members]
        self.parameters = [parameter for _, parameter in named]
        self.registered = [Registered(name, each.dtype, each.numel()) for name, each in named]
        self.counts = [len(members) for _, members in self._lists]
        self.groups = [script_group(members[0][1]) for _, members in self._lists]
        self.hooks: list[GradientHooks] = []
        self.called: nn.Module | None = None
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

    def shard(self, scope: str, whole: Collection[int]) -> list[_core.GradientReducer]:
        """Lets the ranks own shards of the means; see `AveragedGradients.shard()`.

        All ranks of the job call it.
        """
        first, reducers = 0, []
        for group, members in self._lists:
            reduction = GroupReduction(group, members, scope=scope, first=first, whole=whole)
            self._reductions.append(reduction)
            reducers.append(reduction.reducer)
            first += len(members)
        self._replicas.keep(self._reductions, self._lists)
        return reducers
