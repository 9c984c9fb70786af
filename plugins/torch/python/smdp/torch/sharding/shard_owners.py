"""The ranks that own shards, and what they compute together."""

from __future__ import annotations

import math
import weakref
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from smdp.torch.process_group.process_group import ProcessGroupSmdp
from smdp.torch.sharding.master_parameters import LOW
from smdp.torch.sharding.means_under_way import MeansUnderWay

_PART = 1 << 15  # elements that stay in a cache while they are converted


class Held(Protocol):
    """A gradient of which this rank has pieces."""

    def measured(self) -> list[Tensor]:
        """Returns the pieces whose norm is asked for, none if the gradient has no mean at the moment."""


class ShardOwners:
    """The ranks that own the shards of a model's gradients.

    Args:
        group: All ranks that average the gradients.
        scope: "world": each element has one owner. "host": it has one on every host.
        means: The means of the last backward.
        count: The number of gradients in all lists.
        spans_slices: Whether ranks with other slices are among them. Each slice collects state on a rank of
            its own.

    Attributes:
        group: All ranks that average the gradients.
        means: The means of the last backward.
        copies: How many ranks own each element.
        is_counted: Whether this rank's pieces are added to sums over all ranks. With several owners of each
            element, only those of the first host are.
        spans_slices: Whether ranks with other slices are among them.
    """

    def __init__(
        self, group: ProcessGroupSmdp, scope: str, means: MeansUnderWay, count: int, *, spans_slices: bool
    ) -> None:
        hosts = group.core.hosts
        self.group = group
        self.copies = len(hosts) if scope == "host" else 1
        self.is_counted = scope == "world" or group.rank() in hosts[0]
        self.means = means
        self._count = count
        self.spans_slices = spans_slices
        self._held: weakref.WeakValueDictionary[int, Held] = weakref.WeakValueDictionary()
        self._known: dict[int, Tensor] = {}  # norms that no call has returned yet
        self._known_of = (0, 0.0)  # the step and the order of these norms

    @property
    def step(self) -> int:
        """The number of backward passes whose gradients are means."""
        return self.means.steps

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
                    # Norms of pieces are combined before they are rounded to 16 bits.
                    each = [wide_norm(one, order).double() for one in pieces]
                    whole = torch.stack(each)
                    partial[place] = whole.sum() if order == 0 else torch.linalg.vector_norm(whole, order)
        if math.isinf(order):
            dist.all_reduce(partial, dist.ReduceOp.MAX if order > 0 else dist.ReduceOp.MIN, group=self.group)
            return partial
        powers = partial if order == 0 else partial.pow(order)
        dist.all_reduce(powers, group=self.group)
        return powers if order == 0 else powers.pow(1 / order)

    def agree(self, holds: bool) -> bool:
        """Returns whether something holds on all ranks. Collective."""
        told = torch.tensor([holds], dtype=torch.uint8)
        dist.all_reduce(told, dist.ReduceOp.MIN, group=self.group)
        return bool(told)

    def add_up(self, values: Tensor, to: int) -> None:
        """Adds up the values of all ranks, on the global rank `to`. Collective.

        The values of other ranks are undefined then.
        """
        if self.spans_slices:
            dist.all_reduce(values, group=self.group)
        else:
            dist.reduce(values, to, group=self.group)

    def hold(self, index: int, grad: Held) -> None:
        """Adds the newest mean of a gradient, until it is collected."""
        self._held[index] = grad

    def norm(self, index: int, order: float) -> Tensor:
        """Returns the norm of one gradient in float64. Collective.

        The first call computes the norms of all gradients, which later calls return one by one. All ranks
        make the same calls, so they agree on when that is.
        """
        asked = (self.step, order)
        if self._known_of != asked or index not in self._known:
            held = [self._held.get(number) for number in range(self._count)]
            norms = self.norms([[] if one is None else one.measured() for one in held], order)
            self._known = dict(enumerate(norms.unbind()))
            self._known_of = asked
        return self._known.pop(index)

    def forget_norms(self) -> None:
        """Must be called when a gradient changes."""
        self._known = {}


def wide_norm(tensor: Tensor, order: float) -> Tensor:
    """Returns a norm of a tensor; that of one with 16 bits is computed with 64.

    The norms of pieces and of the whole then agree in 32 bits. Converting parts first takes a fraction of the
    time of `torch.linalg.vector_norm(dtype=...)`.
    """
    if tensor.dtype not in LOW:
        return torch.linalg.vector_norm(tensor, order)
    flat = tensor.reshape(-1)
    parts = [torch.linalg.vector_norm(part.double(), order) for part in flat.split(_PART)]
    whole = torch.stack(parts)
    return whole.sum() if order == 0 else torch.linalg.vector_norm(whole, order)
