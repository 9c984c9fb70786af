"""Averages the gradients of embeddings with `sparse=True`, whose rows do not use the fusion buffers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, MutableMapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from smdp import _core
from smdp.torch.process_group.sparse_sums import SparseStaging, empty_like


class Summing(Protocol):
    """Sums gradients of which every rank has only some rows, as the core's GradientReducer does."""

    def all_reduce_sparse(self, index: int, sum: _core.SparseSum, /) -> _core.Handle:
        """Starts the sum of a gradient."""

    def or_over_ranks(self, flags: int, count: int, /) -> None:
        """Sets each of the `count` bytes at address `flags` to 1 if it is 1 on any rank. Collective."""

    def abort(self, reason: str, /) -> None:
        """Fails all sums on all ranks."""


# Zeros that stand in for a missing gradient. Sending them would make the sum dense on all ranks.
_stand_ins: MutableMapping[Tensor, None] = WeakTensorKeyDictionary()


class SparseGradients:
    """Gradients that have only some rows on each rank.

    The GradientReducer registers them with 0 elements and tracks which of them any rank has used.

    Args:
        indices: Indices of their parameters, the same on all ranks.
        parameters: All parameters of the model.

    Attributes:
        indices: The indices of their parameters.
    """

    def __init__(self, indices: Collection[int], parameters: Sequence[Tensor]) -> None:
        self.indices = frozenset(indices)
        self._parameters = parameters
        self._given: dict[int, Tensor] = {}
        self._summing: Summing | None = None
        # The core reads the copies in a staging until its handle's wait() returns.
        self._under_way: dict[int, tuple[_core.Handle, SparseStaging]] = {}

    def give(self, index: int, gradient: Tensor) -> None:
        """Stores this rank's gradient, which is dense if the parameter also has a dense use."""
        if not (gradient in _stand_ins and not gradient.any()):
            self._given[index] = gradient

    def send(self, summing: Summing) -> None:
        """Starts all sums of a step. A gradient that was not given counts as zero."""
        self._summing = summing
        for index in sorted(self.indices, reverse=True):  # as backward produces them
            gradient = self._given.get(index)
            if gradient is None:
                gradient = empty_like(self._parameters[index])
            try:
                staging = SparseStaging("all_reduce", gradient)
            except BaseException as error:  # the other ranks wait for this sum
                self._abort(error)
                raise
            self._under_way[index] = summing.all_reduce_sparse(index, staging.sum), staging

    def take(self, index: int) -> Tensor:
        """Waits for the mean of a gradient and returns it.

        If this fails, the sums of all ranks fail, because the others would continue with a mean that this
        rank does not have.
        """
        handle, staging = self._under_way[index]
        try:
            handle.wait()
            mean = staging.result()
        except BaseException as error:
            self._abort(error)
            raise
        del self._under_way[index]
        return mean

    def forget(self) -> None:
        """Ends the step after waiting for the sums that were not taken."""
        while self._under_way:
            index = next(iter(self._under_way))
            with contextlib.suppress(Exception):  # the error has been raised already
                self._under_way[index][0].wait()
            del self._under_way[index]
        self._given.clear()

    def _abort(self, error: BaseException) -> None:
        assert self._summing is not None
        self._summing.abort(str(error).removeprefix("[smdp] ") or type(error).__name__)


def stand_in_like(parameter: Tensor) -> Tensor:
    """Returns zeros for scripts that read a gradient early. Unchanged zeros count as no gradient."""
    zeros = torch.zeros_like(parameter)
    _stand_ins[zeros] = None
    return zeros


def sparse_on_any_rank(summing: Summing, gradients: Sequence[Tensor | None]) -> set[int]:
    """Returns the indices of gradients that are sparse on some rank. Collective; lists are equally long."""
    are_sparse = [gradient is not None and gradient.is_sparse for gradient in gradients]
    flags = torch.tensor(are_sparse, dtype=torch.uint8, device="cpu")
    summing.or_over_ranks(flags.data_ptr(), flags.numel())
    return set(flags.nonzero().flatten().tolist())


def sparse_parameters(module: nn.Module) -> set[int]:
    """Returns the ids of the parameters of embeddings with `sparse=True`, whose gradients may be sparse."""
    return {
        id(parameter)
        for part in module.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
        for parameter in part.parameters(recurse=False)
    }
