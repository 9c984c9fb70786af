"""Means that replace whole gradients while backward goes on."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

from smdp import _core
from smdp.torch.data_parallel.gradient_hooks import GradientHooks
from smdp.torch.data_parallel.reducer_options import KEEPING_COMPRESSIONS
from smdp.torch.sharding.shard_layout import ShardLayout

_MOST_BYTES = 32 << 20  # of gradients that are not summed yet, besides the newest one


class EarlyMeans:
    """Frees the gradients of this rank as soon as they are summed, and keeps its pieces of the means.

    Backward waits if it is far ahead of the sums, so that few gradients are in memory at any time.

    Args:
        hooks: Hand gradients over.
        reducer: Averages them.
        layout: The fusion buffers.
    """

    def __init__(self, hooks: GradientHooks, reducer: _core.GradientReducer, layout: ShardLayout) -> None:
        self._hooks = hooks
        self._reducer = reducer
        self._layout = layout
        # Where compression keeps errors, the reducer looks at all sums when the step ends.
        self._is_on = hooks.compression not in KEEPING_COMPRESSIONS
        self._coming: deque[int] = deque()
        self._kept: dict[int, list[Tensor]] = {}

    def handed_over(self, index: int) -> None:
        """Frees what is summed. A gradient that is not alone in its buffer was copied there."""
        if not self._is_on:
            return
        if not self._layout.is_alone(index):
            self._free(index)
            return
        lent = self._hooks.lent
        coming = {one: lent[one] for one in (*self._coming, index) if one in lent}
        ahead = sum(grad.nbytes for grad in coming.values()) - coming[index].nbytes
        self._coming = deque(coming)
        while self._coming:
            oldest = self._coming[0]
            number = self._layout.buffer_of(oldest)
            must_wait = ahead > _MOST_BYTES and oldest != index
            if not (self._reducer.await_means(number) if must_wait else self._reducer.has_means(number)):
                return
            self._coming.popleft()
            grad = coming.pop(oldest)
            ahead -= grad.nbytes
            with torch.no_grad():
                self._kept[oldest] = [piece.clone() for piece in self._layout.means(oldest, grad)]
            del grad
            self._free(oldest)

    def _free(self, index: int) -> None:
        self._hooks.parameters[index].grad = None
        self._hooks.freed.add(index)
        del self._hooks.lent[index]

    def take(self, index: int) -> list[Tensor] | None:
        """Returns the pieces of a mean whose gradient is freed, or None. Backward has ended."""
        self._coming.clear()
        return self._kept.pop(index, None)
