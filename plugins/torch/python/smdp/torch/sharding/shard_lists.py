"""The lists of a model's gradients, whose means are owned in shards."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from torch import Tensor
from torch.distributed import get_process_group_ranks

from smdp.torch.data_parallel.averaged_gradients import AveragedGradients
from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.sharding.early_means import EarlyMeans
from smdp.torch.sharding.joined_reducers import JoinedReducers
from smdp.torch.sharding.means_under_way import MeansUnderWay
from smdp.torch.sharding.moved_residuals import move_residuals
from smdp.torch.sharding.shard_layout import ShardLayout
from smdp.torch.sharding.shard_owners import ShardOwners


class _List(NamedTuple):
    """A list of gradients that are averaged over one group.

    Attributes:
        first: The index of its first parameter.
        first_buffer: The number of its first fusion buffer.
        means: The means of the last backward.
    """

    first: int
    first_buffer: int
    means: MeansUnderWay


class ShardLists:
    """What the ranks own of the means of all lists. All ranks create it together.

    Args:
        gradients: The gradients.
        group: The ranks that hold the same parameters. Those of a list may include ranks with other slices.
        scope: "world" or "host".
        whole: Indices of the parameters that must not be cut.

    Attributes:
        reducer: The reducers of all lists.
        owners: The ranks that own the shards of each gradient, by index.
    """

    def __init__(
        self, gradients: AveragedGradients, group: ProcessGroupSmdp, scope: str, whole: Collection[int]
    ) -> None:
        self._unsharded = [(each, each.reducer) for each in gradients.hooks]
        reducers = gradients.shard(scope, whole)
        self.reducer = JoinedReducers(list(zip(reducers, gradients.counts, strict=True)))
        self.owners: list[ShardOwners] = []
        self._lists: list[_List] = []
        self._means: list[MeansUnderWay] = []  # by index
        self._early: list[EarlyMeans] = []  # by index, unless nothing hands over gradients during backward
        # The lists of a group end their steps together.
        self._of_group: dict[ProcessGroupSmdp, ShardOwners] = {}
        count, first_buffer, replicas = len(gradients.parameters), 0, set(get_process_group_ranks(group))
        for number, (reducer, ranks) in enumerate(zip(reducers, gradients.groups, strict=True)):
            means = MeansUnderWay(reducer, gradients.hooks[number] if gradients.hooks else None)
            if ranks not in self._of_group:
                spans_slices = not replicas.issuperset(get_process_group_ranks(ranks))
                self._of_group[ranks] = ShardOwners(ranks, scope, means, count, spans_slices=spans_slices)
            self._lists.append(_List(len(self.owners), first_buffer, means))
            self.owners += [self._of_group[ranks]] * gradients.counts[number]
            self._means += [means] * gradients.counts[number]
            first_buffer += len(reducer.sharded_buffers)

    @property
    def groups(self) -> list[ProcessGroupSmdp]:
        """The groups of the lists, each once."""
        return list(self._of_group)

    @property
    def is_over(self) -> bool:
        """Whether all means have arrived."""
        return all(each.means.is_over for each in self._lists)

    def take_over(self, layout: ShardLayout) -> None:
        """Waits for means where they are used from now on, and frees gradients as soon as they are summed.

        Args:
            layout: Says which pieces this rank owns.
        """
        if self._unsharded:
            for each, (hooks, before) in zip(self._lists, self._unsharded, strict=True):
                early = EarlyMeans(hooks, layout, each.first, each.first_buffer)
                self._early += [early] * len(hooks.parameters)
                move_residuals(hooks, before, layout, each.first)
                hooks.deferral = each.means
        self._unsharded = []  # their fusion buffers are freed

    def hand_over(self, index: int) -> None:
        """Makes memory for the mean of a gradient."""
        if self._early:
            self._early[index].hand_over(index)

    def handed_over(self, index: int) -> None:
        """Frees gradients that are summed already."""
        if self._early:
            self._early[index].handed_over(index)

    def take(self, index: int, lent: Tensor | None, *, is_alone: bool) -> Tensor | None:
        """Returns this rank's values of a mean, or None if they replace those of the gradient.

        Args:
            index: The parameter's index.
            lent: The gradient that this rank handed over.
            is_alone: Whether the gradient is summed in its own memory.
        """
        own = self._early[index].take(index) if self._early else None
        self._means[index].lend(own, lent if is_alone else None)
        return own

    def agree(self, holds: bool) -> bool:
        """Returns whether something holds on all ranks that have pieces. Collective."""
        for owners in self._of_group.values():
            holds = owners.agree(holds)
        return holds

    def in_order(self) -> Iterator[list[int]]:
        """Yields the numbers of fusion buffers as their means arrive; see `MeansUnderWay.in_order()`."""
        for each in self._lists:
            for numbers in each.means.in_order():
                yield [each.first_buffer + number for number in numbers]

    def end(self) -> None:
        """Waits until all means have arrived."""
        for each in self._lists:
            each.means.end()
