"""Parameters on their way from the ranks that have updated them to all ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import torch
from torch import nn
from torch.nn import Parameter

from smdp.torch.forward_waits.awaited_parameters import AwaitedParameters
from smdp.torch.forward_waits.pending_watch import Words
from smdp.torch.process_group.profiling import ranged
from smdp.torch.sharding.joined_reducers import JoinedGather
from smdp.torch.sharding.shard_layout import ShardLayout
from smdp.torch.sharding.write_watch import WriteWatch

_WORDS = Words(feature="ShardedOptimizer", missed="their new values")


class ReturningParameters:
    """Receives the parameters that an optimizer step has sent.

    Args:
        layout: The fusion buffers.
        parameters: The parameters, by index.
        updated: The indices of those that the optimizer updates, at any time.
        watch: Is told which parameters a step has changed.

    Attributes:
        pending: The indices of the parameters that have not arrived.
    """

    def __init__(
        self,
        layout: ShardLayout,
        parameters: Sequence[Parameter],
        updated: Collection[int],
        watch: WriteWatch | None,
    ) -> None:
        self._layout = layout
        self._parameters = parameters
        self._updated = updated
        self._watch = watch
        self._gather: JoinedGather | None = None
        self.pending: set[int] = set()

    def expect(self, gather: JoinedGather) -> None:
        """Takes a gather of which this rank has sent all its parts."""
        self._gather = gather
        self.pending.update(range(len(self._parameters)))
        # A graph that was recorded before must not be used any more.
        torch.autograd.graph.increment_version([self._parameters[index] for index in self._updated])

    def receive(self, indices: Iterable[int]) -> None:
        """Waits until these parameters have arrived, and all others of their fusion buffers."""
        assert self._gather is not None
        with ranged("wait for parameters"):
            for number in sorted({self._layout.buffer_of(index) for index in indices}, reverse=True):
                members = self._layout.members(number)
                if members[0] not in self.pending:
                    continue
                self._gather.wait_for(number)
                self.pending.difference_update(members)
                if self._watch is not None:
                    self._watch.accept(members)
            if not self.pending:
                self._gather.wait()
                self._gather = None

    def receive_all(self) -> None:
        """Waits until all parameters have arrived."""
        if self.pending:
            self.receive(tuple(self.pending))


def awaited_parameters(
    model: nn.Module, parameters: Sequence[Parameter], returning: ReturningParameters
) -> AwaitedParameters:
    """Makes the forward of a wrapped model, and all other reads, wait for returning parameters."""
    return AwaitedParameters(model, parameters, returning.pending, returning.receive, _WORDS)
