"""Memory for this rank's parts of the means, and gradients that are freed while backward goes on."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.reducer_options import KEEPING_COMPRESSIONS
from smdp.torch.sharding.shard_layout import ShardLayout

_MOST_BYTES = 16 << 20  # of gradients that are not summed yet, besides the newest one


class EarlyMeans:
    """Frees the gradients of this rank as soon as they are summed.

    What this rank owns of the mean of a large gradient is summed into memory of its own. Backward waits if it
    is far ahead of the sums, so that few gradients are in memory at any time.

    Args:
        hooks: Hand gradients over, to a reducer whose means are sharded.
        layout: The fusion buffers.
        first: The index of the first of these gradients in the layout.
        first_buffer: The number of their first fusion buffer in the layout.
    """

    def __init__(self, hooks: GradientHooks, layout: ShardLayout, first: int, first_buffer: int) -> None:
        self._hooks = hooks
        self._reducer = hooks.reducer
        self._layout = layout
        self._first = first
        self._first_buffer = first_buffer
        # Where compression keeps errors, the reducer looks at all sums when the step ends.
        self._is_on = hooks.compression not in KEEPING_COMPRESSIONS
        self._coming: deque[int] = deque()
        # Kept, because allocating it in every step would scatter it among gradients that are freed.
        self._own: dict[int, Tensor] = {}

    def hand_over(self, index: int) -> None:
        """Provides memory for the mean of a gradient that the reducer is about to get."""
        pieces = self._layout.pieces[index]
        if not self._is_on or not self._layout.is_alone(index) or not pieces:
            return
        own = self._own.get(index)
        if own is None:
            count = sum(piece.end - piece.begin for piece in pieces)
            own = self._own[index] = torch.empty(count, dtype=self._layout.parameters[index].dtype)
        self._hooks.own[index - self._first] = own
        self._reducer.sum_into(index - self._first, own.data_ptr())

    def handed_over(self, index: int) -> None:
        """Frees what is summed. A gradient that is not alone in its buffer was copied there."""
        if not self._is_on:
            return
        if not self._layout.is_alone(index):
            self._free(index)
            return
        lent = self._hooks.lent
        every = ((one, lent.get(one - self._first)) for one in (*self._coming, index))
        coming = {one: grad for one, grad in every if grad is not None}
        ahead = sum(grad.nbytes for grad in coming.values()) - coming[index].nbytes
        self._coming = deque(coming)
        while self._coming:
            oldest = self._coming[0]
            number = self._layout.buffer_of(oldest) - self._first_buffer
            must_wait = ahead > _MOST_BYTES and oldest != index
            if not (self._reducer.await_means(number) if must_wait else self._reducer.has_means(number)):
                return
            self._coming.popleft()
            ahead -= coming.pop(oldest).nbytes
            self._free(oldest)

    def _free(self, index: int) -> None:
        self._layout.parameters[index].grad = None
        self._hooks.freed.add(index - self._first)
        del self._hooks.lent[index - self._first]

    def take(self, index: int) -> Tensor | None:
        """Returns this rank's values of a mean, or None if they replace those of the gradient."""
        self._coming.clear()  # backward has ended
        return self._hooks.own.pop(index - self._first, None)
