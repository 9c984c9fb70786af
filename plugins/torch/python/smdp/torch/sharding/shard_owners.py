"""The ranks that own shards, and what they compute together."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from smdp import _core
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class ShardOwners:
    """The ranks that own the shards of a model's gradients.

    Args:
        group: All ranks that average the gradients.
        scope: "world": each element has one owner. "host": it has one on every host.
        reducer: The reducer of the gradients.

    Attributes:
        group: All ranks that average the gradients.
        copies: How many ranks own each element.
        is_counted: Whether this rank's pieces are added to sums over all ranks. With several owners of each
            element, only those of the first host are.
    """

    def __init__(self, group: ProcessGroupSmdp, scope: str, reducer: _core.GradientReducer) -> None:
        hosts = group.core.hosts
        self.group = group
        self.copies = len(hosts) if scope == "host" else 1
        self.is_counted = scope == "world" or group.rank() in hosts[0]
        self._reducer = reducer

    @property
    def step(self) -> int:
        """The number of means that the reducer has computed."""
        return self._reducer.steps

    def norms(self, own: list[list[Tensor]], order: float) -> Tensor:
        """Returns norms over all ranks, in float64. Collective.

        Args:
            own: This rank's pieces, by gradient.
            order: The order of the norm.
        """
        partial = torch.full((len(own),), math.inf if order < 0 else 0.0, dtype=torch.float64)
        if self.is_counted:
            for place, pieces in enumerate(own):
                if pieces:
                    each = [torch.linalg.vector_norm(piece, order).double() for piece in pieces]
                    whole = torch.stack(each)
                    partial[place] = whole.sum() if order == 0 else torch.linalg.vector_norm(whole, order)
        if math.isinf(order):
            dist.all_reduce(partial, dist.ReduceOp.MAX if order > 0 else dist.ReduceOp.MIN, group=self.group)
            return partial
        powers = partial if order == 0 else partial.pow(order)
        dist.all_reduce(powers, group=self.group)
        return powers if order == 0 else powers.pow(1 / order)
