"""Gradients of embeddings with `sparse=True`: their rows are gathered beside the fusion buffers."""

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
    """Sums gradients of which every rank has only some rows; the core's GradientReducer does."""

    def all_reduce_sparse(self, index: int, sum: _core.SparseSum, /) -> _core.Handle:
        """Starts the sum of a gradient."""

    def or_over_ranks(self, flags: int, count: int, /) -> None:
        """Sets each of `count` bytes at an address to 1 if any rank has it; all ranks call it."""

    def abort(self, reason: str, /) -> None:
        """Fails all sums, on all ranks."""


# Their zeros say nothing of a gradient, and a dense one would make the sum dense on all ranks.
_stand_ins: MutableMapping[Tensor, None] = WeakTensorKeyDictionary()


class SparseGradients:
    """Gradients that have only some rows on each rank, by their index in a list of parameters.

    A GradientReducer knows them with 0 elements, so that it tells which of them any rank has used.

    Args:
        indices: Of them, the same on all ranks.
        parameters: The whole list.

    Attributes:
        indices: The same.
    """

    def __init__(self, indices: Collection[int], parameters: Sequence[Tensor]) -> None:
        self.indices = frozenset(indices)
        self._parameters = parameters
        self._given: dict[int, Tensor] = {}
        self._summing: Summing | None = None
        # The core reads the copies in a staging until its handle's wait() has returned.
        self._under_way: dict[int, tuple[_core.Handle, SparseStaging]] = {}

    def give(self, index: int, gradient: Tensor) -> None:
        """Takes what this rank has of a gradient, which is dense if the parameter also has a dense use."""
        if not (gradient in _stand_ins and not gradient.any()):
            self._given[index] = gradient

    def send(self, summing: Summing) -> None:
        """Starts all sums of a step; what was not given counts as zero."""
        self._summing = summing
        for index in sorted(self.indices, reverse=True):  # as backward produces them
            gradient = self._given.get(index)
            if gradient is None:
                gradient = empty_like(self._parameters[index])
            try:
                staging = SparseStaging("all_reduce", gradient)
            except BaseException as error:  # the other ranks wait for it
                self._abort(error)
                raise
            self._under_way[index] = summing.all_reduce_sparse(index, staging.sum), staging

    def take(self, index: int) -> Tensor:
        """Waits for a gradient's mean and returns it.

        If that fails, so do the sums of all ranks: the others would go on with a mean that this rank lacks.
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
        """Ends the step, once nothing that nobody has taken is under way."""
        while self._under_way:
            index = next(iter(self._under_way))
            with contextlib.suppress(Exception):  # others have raised it
                self._under_way[index][0].wait()
            del self._under_way[index]
        self._given.clear()

    def _abort(self, error: BaseException) -> None:
        assert self._summing is not None
        self._summing.abort(str(error).removeprefix("[smdp] ") or type(error).__name__)


def stand_in_like(parameter: Tensor) -> Tensor:
    """Returns zeros for scripts that read a gradient before there is one; unchanged, they count as none."""
    zeros = torch.zeros_like(parameter)
    _stand_ins[zeros] = None
    return zeros


def sparse_on_any_rank(summing: Summing, gradients: Sequence[Tensor | None]) -> set[int]:
    """Returns the indices of gradients that are sparse on some rank; all ranks call it with the same list."""
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
