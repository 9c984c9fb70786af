"""Shards the optimizers that Accelerate prepares."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from smdp.accelerate.wrapped_models import PreparedModels
from smdp.torch.plugin_support import DistributedDataParallel, ShardedOptimizer, on_every_rank


class ShardedOptimizers:
    """Distributes the state of optimizers over the ranks that average the gradients of their models.

    Args:
        options: Keyword arguments of ShardedOptimizer.
        models: Those whose gradients are averaged.
        master_dtype: The dtype of the masters of 16-bit parameters, or None for no masters.
    """

    def __init__(
        self, options: Mapping[str, Any], models: PreparedModels, master_dtype: torch.dtype | None = None
    ) -> None:
        self._options = options
        self._master_dtype = master_dtype
        self._models = models
        self._optimizers: weakref.WeakKeyDictionary[nn.Module, weakref.ref[_Saved]] = (
            weakref.WeakKeyDictionary()
        )

    def shard(self, optimizer: Optimizer) -> ShardedOptimizer:
        """Distributes the state of an optimizer, whose model was prepared before.

        Raises:
            ValueError: No prepared model has the optimizer's parameters, or they cannot be sharded.
        """
        model = self._models.model_of(optimizer, "shard_optimizer")
        assert isinstance(model, DistributedDataParallel)
        sharded = _Saved(optimizer, model, master_dtype=self._master_dtype, **self._options)
        self._optimizers[model.module] = weakref.ref(sharded)
        return sharded

    def collect(self, models: Iterable[nn.Module], is_writing: bool) -> None:
        """Collects the states of optimizers where they will be written. Collective.

        Args:
            models: The models of these optimizers as before prepare(), in the same order on all ranks.
            is_writing: Whether this rank writes a checkpoint.
        """
        known = [self._optimizers[model]() for model in models if model in self._optimizers]
        writers = [rank for rank, writes in enumerate(on_every_rank(lambda: is_writing)) if writes]
        for optimizer in known:
            assert optimizer is not None  # the Accelerator keeps both
            for rank in writers:
                optimizer.consolidate(rank)
            optimizer.is_saved_elsewhere = not is_writing


class _Saved(ShardedOptimizer):
    """A ShardedOptimizer whose state Accelerate can save: it asks all ranks, and writes on some."""

    is_saved_elsewhere = False

    def consolidate(self, to: int | None = None) -> None:
        """Collects the state as a ShardedOptimizer does; a script may then read it on any rank."""
        super().consolidate(to)
        self.is_saved_elsewhere = False

    def state_dict(self) -> dict[str, Any]:
        """Returns the collected state, empty on ranks that do not write checkpoints."""
        return {} if self.is_saved_elsewhere else super().state_dict()
