"""The gradients that wrapped models hand over in backward, as a `ShardedOptimizer` takes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor, nn

from smdp import _core
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.gradient_takers import Shards
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class BackwardGradients:
    """The `AveragedGradients` of one or several wrapped models, each of which averages a list.

    Args:
        lists: The hooks of each wrapped model, and its group.
        called: The model whose forward begins a step.

    Attributes:
        parameters: The parameters, by index.
        registered: Name, dtype and element count of each.
        counts: The number of parameters in each list.
        groups: The ranks that average each list.
        hooks: What hands over each list.
        called: The model whose forward begins a step.
        which: Tells users which parameters these are.
    """

    which = GradientHooks.which

    def __init__(self, lists: Sequence[tuple[GradientHooks, ProcessGroupSmdp]], called: nn.Module) -> None:
        self.hooks = [hooks for hooks, _ in lists]
        self.groups = [group for _, group in lists]
        self.parameters = [each for hooks in self.hooks for each in hooks.parameters]
        self.registered = [each for hooks in self.hooks for each in hooks.registered]
        self.counts = [len(hooks.parameters) for hooks in self.hooks]
        self.called: nn.Module | None = called

    @property
    def shards(self) -> Shards | None:
        """The object that owns pieces of the means, or None if every rank has all means."""
        return next((hooks.shards for hooks in self.hooks if hooks.shards is not None), None)

    @shards.setter
    def shards(self, shards: Shards) -> None:
        first = 0
        for hooks, count in zip(self.hooks, self.counts, strict=True):
            hooks.shards = _ListShards(shards, first) if first else shards  # the usual case has one list
            first += count

    def shard(self, scope: str, whole: Collection[int]) -> list[_core.GradientReducer]:
        """Lets the ranks own shards of the means; see `AveragedGradients.shard()`. Collective."""
        first, found = 0, []
        for hooks, count in zip(self.hooks, self.counts, strict=True):
            own = [index - first for index in whole if first <= index < first + count]
            found.append(hooks.shard(scope, own))
            first += count
        return found


class _ListShards:
    """The `Shards` of a list, whose parameters have other indices in all lists.

    Args:
        shards: The `Shards` of all lists.
        first: The index of the list's first parameter among those of all lists.
    """

    def __init__(self, shards: Shards, first: int) -> None:
        self._shards = shards
        self._first = first

    def mean(self, index: int, lent: Tensor | None) -> Tensor:
        """Returns the mean of a gradient."""
        return self._shards.mean(self._first + index, lent)

    def hand_over(self, index: int) -> None:
        """Is called before the reducer gets a gradient."""
        self._shards.hand_over(self._first + index)

    def handed_over(self, index: int) -> None:
        """Is called when this rank has handed over a gradient."""
        self._shards.handed_over(self._first + index)

    def contribution(self, grad: Tensor) -> Tensor:
        """Returns what this rank adds to the next mean."""
        return self._shards.contribution(grad)

    def own(self, mean: Tensor) -> list[Tensor]:
        """Returns the pieces of a mean that this rank owns."""
        return self._shards.own(mean)

    def own_sizes(self, index: int) -> list[int]:
        """Returns the numbers of elements of these pieces."""
        return self._shards.own_sizes(self._first + index)

    def agree(self, holds: bool) -> bool:
        """Returns whether something holds on all ranks that have pieces. Collective."""
        return self._shards.agree(holds)
