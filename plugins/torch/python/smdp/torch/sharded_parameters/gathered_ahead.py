"""Gathers the parameters of the next unit while a unit computes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


class GatheredAhead:
    """Starts to gather the next unit before a unit computes, unless too many parameters would be whole.

    The first forward is in the order of the units, and later ones are in the order of the first. Units that
    backward visits are gathered ahead in the opposite order.

    Args:
        root: The model. Its own parameters stay whole from its forward to the end of backward.
        units: The modules inside it that are gathered one by one.
        sizes: The number of parameters of each of them, and of the root's own.
        limit: The largest number of parameters that may be whole when a unit is gathered ahead.
    """

    def __init__(
        self, root: FSDPModule, units: Sequence[FSDPModule], sizes: dict[FSDPModule, int], limit: float
    ) -> None:
        self._root = root
        self._sizes = sizes
        self._limit = limit
        self._next: dict[FSDPModule, FSDPModule] = {}
        self._seen: dict[FSDPModule, None] = {}
        self._order(list(units))
        for unit in units:
            _module(unit).register_forward_pre_hook(self._ahead)
        self._known = _module(root).register_forward_hook(self._learn)

    def _order(self, units: Sequence[FSDPModule]) -> None:
        fits = self._fits
        self._next = {one: other for one, other in itertools.pairwise(units) if fits(one, other)}
        before = {other: one for one, other in itertools.pairwise(units) if fits(one, other)}
        for unit in units:
            # Without a list torch gathers one unit ahead. The root is whole, so gathering it does nothing.
            unit.set_modules_to_backward_prefetch([before.get(unit, self._root)])
            unit._set_unshard_async_op(True)

    def _fits(self, one: FSDPModule, other: FSDPModule) -> bool:
        return self._sizes[self._root] + self._sizes[one] + self._sizes[other] <= self._limit

    def _ahead(self, unit: nn.Module, args: Any) -> None:
        if _is_in_backward():  # recomputation, where the next unit has been used already
            return
        assert isinstance(unit, FSDPModule)
        self._seen[unit] = None
        if (following := self._next.get(unit)) is not None:
            following.unshard(async_op=True)

    def _learn(self, root: nn.Module, args: Any, output: Any) -> None:
        """Takes the order of the units from the first forward."""
        if _is_in_backward():
            return
        self._order(list(self._seen))
        self._known.remove()


def _module(module: FSDPModule) -> nn.Module:
    assert isinstance(module, nn.Module)
    return module


def _is_in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)
