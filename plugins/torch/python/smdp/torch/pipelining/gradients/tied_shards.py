"""Adds the means of tied weights over ranks of a pipeline, each of which owns pieces of the means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast

import torch.distributed as dist
from torch import Tensor
from torch.nn import Parameter

from smdp.torch.data_parallel.gradient_takers import Shards
from smdp.torch.process_group.process_group import ProcessGroupSmdp


class OwnedMean(Protocol):
    """A mean of which this rank has pieces.

    Attributes:
        pieces: This rank's values.
        ranges: The elements of each piece.
    """

    pieces: list[Tensor]

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """The elements of each piece."""

    def full_tensor(self) -> Tensor:
        """Returns all values. All replicas call it."""

    def take(self, whole: Tensor) -> None:
        """Takes this rank's pieces of a whole tensor."""


class TiedShards:
    """Adds pieces of gradients that other stages have as well.

    Args:
        shards: Owns pieces of the means.
        parameters: The parameters, by index.
    """

    def __init__(self, shards: Shards, parameters: Sequence[Parameter]) -> None:
        self._shards = shards
        self._index = {parameter: index for index, parameter in enumerate(parameters)}
        self._before: dict[Parameter, list[Tensor]] = {}
        self._is_same_cut: dict[Parameter, bool] = {}

    def has(self, parameter: Parameter) -> bool:
        """Returns whether this object adds the gradients of a parameter."""
        return parameter in self._index

    def put_aside(self, parameter: Parameter) -> None:
        """Copies the gradient of earlier steps, because a step reuses its memory."""
        if parameter.grad is not None:
            self._before[parameter] = [piece.clone() for piece in _owned(parameter.grad).pieces]

    def reduce(self, parameter: Parameter, group: ProcessGroupSmdp) -> None:
        """Adds the mean over the ranks of the pipeline that use the parameter."""
        mean = parameter.grad
        if mean is None:
            mean = self._shards.mean(self._index[parameter], None)
            mean.zero_()
        owned = _owned(mean)
        if self._is_cut_alike(parameter, owned, group):
            for piece in owned.pieces:
                dist.all_reduce(piece, group=group)
        else:
            whole = owned.full_tensor()
            dist.all_reduce(whole, group=group)
            owned.take(whole)
        for piece, before in zip(owned.pieces, self._before.pop(parameter, owned.pieces[:0]), strict=False):
            piece.add_(before)
        parameter.grad = mean

    def _is_cut_alike(self, parameter: Parameter, mean: OwnedMean, group: ProcessGroupSmdp) -> bool:
        """Returns whether these ranks own the same elements, which they do if their replicas share hosts."""
        if parameter not in self._is_same_cut:
            told: list[Any] = [None] * group.size()
            dist.all_gather_object(told, [tuple(each) for each in mean.ranges], group=group)
            # All replicas must take the same way, and each sees only the ranks of its own pipeline.
            self._is_same_cut[parameter] = self._shards.agree(all(each == told[0] for each in told))
        return self._is_same_cut[parameter]


def _owned(mean: Tensor) -> OwnedMean:
    return cast("OwnedMean", mean)
