"""Sums of gradients over microbatches with 32 bits."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.sharding.master_parameters import LOW, follow
from smdp.torch.sharding.sharded_gradient import ShardedGradient

_log = logging.getLogger(__name__)


class WideSums:
    """Accumulates 16-bit gradients in 32 bits, so that each is rounded once and not once per microbatch.

    `.grad` is the rounded sum after every backward, which is what ranks average. A script may clear, scale
    or replace it in between. The sum exists from the second backward until the gradient is cleared.

    Args:
        parameters: The parameters. Those with other than 16 bits are left alone.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        self._sums: dict[int, Tensor] = {}
        self._coming: set[int] = set()
        self._added: set[Parameter] = set()
        self._seen: set[int] = set()  # with a gradient since the last clear()
        self._has_warned = False
        for parameter in parameters:
            self.add(parameter)

    def add(self, parameter: Parameter) -> None:
        """Accumulates the gradients of a parameter from now on."""
        if parameter in self._added or parameter.dtype not in LOW or not parameter.requires_grad:
            return
        self._added.add(parameter)
        own = weakref.ref(self)
        parameter.register_hook(functools.partial(_add, own, weakref.ref(parameter)))
        parameter.register_post_accumulate_grad_hook(functools.partial(_show, own))

    def clear(self) -> None:
        """Frees the sums."""
        self._sums.clear()
        self._coming.clear()
        self._seen.clear()

    def take(self, parameter: Parameter, gradient: Tensor) -> None:
        """Adds a gradient that autograd is about to add to `.grad`."""
        key, before = id(parameter), parameter.grad
        if isinstance(before, ShardedGradient) and key in self._seen and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "[smdp] accumulate_in_fp32: a backward adds to gradients that the one before has averaged, in"
                " 16 bits, because each rank has only its shard of the averages. Call backward within"
                " no_sync() for all microbatches but the last."
            )
        self._seen.add(key)
        if before is None or type(before) is not Tensor or before.is_sparse or gradient.is_sparse:
            self._sums.pop(key, None)  # a first gradient is exact
            return
        wide = self._sums.get(key)
        if wide is None:
            wide = self._sums[key] = before.float()
        else:
            follow(wide, before)
        wide += gradient
        self._coming.add(key)

    def show(self, parameter: Tensor) -> None:
        """Replaces `.grad` by the rounded sum."""
        key = id(parameter)
        if key in self._coming and parameter.grad is not None:
            self._coming.discard(key)
            parameter.grad.copy_(self._sums[key])


def _add(sums: weakref.ref[WideSums], parameter: weakref.ref[Parameter], gradient: Tensor | None) -> None:
    own, found = sums(), parameter()
    if own is not None and found is not None and gradient is not None:
        with torch.no_grad():
            own.take(found, gradient.detach())


def _show(sums: weakref.ref[WideSums], parameter: Tensor) -> None:
    if (own := sums()) is not None:
        with torch.no_grad():
            own.show(parameter)
