"""Shards the optimizers that Accelerate prepares."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn
from torch.optim import Optimizer

from smdp.accelerate.wrapped_models import wrapped_in
from smdp.torch.plugin_support import DistributedDataParallel, ShardedOptimizer, on_every_rank


class ShardedOptimizers:
    """Distributes the state of optimizers over the ranks that average the gradients of their models.

    Args:
        scope: Which ranks share a state; see ShardedOptimizer.
    """

    def __init__(self, scope: str) -> None:
        self._scope = scope
        self._models: list[weakref.ref[DistributedDataParallel]] = []
        self._optimizers: weakref.WeakKeyDictionary[nn.Module, weakref.ref[_Saved]] = (
            weakref.WeakKeyDictionary()
        )

    def add_model(self, model: nn.Module) -> None:
        """Adds a prepared model, whose optimizer will be sharded."""
        if (wrapped := wrapped_in(model)) is not None:
            self._models.append(weakref.ref(wrapped))

    def prepare(
        self, prepare: Callable[..., Optimizer], optimizer: Optimizer, *args: Any, **kwargs: Any
    ) -> Optimizer:
        """Prepares an optimizer for training, and shards it if it was not prepared before.

        Args:
            prepare: The Accelerator's `prepare_optimizer`.
            optimizer: The optimizer, whose model was prepared before.
            *args: For `prepare`.
            **kwargs: For `prepare`.

        Raises:
            ValueError: No prepared model has the optimizer's parameters, or they cannot be sharded.
        """
        if getattr(optimizer, "_is_accelerate_prepared", False):
            return prepare(optimizer, *args, **kwargs)
        model = self._model_of(optimizer)
        sharded = _Saved(optimizer, model, self._scope)
        self._optimizers[model.module] = weakref.ref(sharded)
        # The state is where the parameters are, and Accelerate could move only a whole one.
        return prepare(sharded, device_placement=False)

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

    def _model_of(self, optimizer: Optimizer) -> DistributedDataParallel:
        own = {id(one) for group in optimizer.param_groups for one in group["params"]}
        for reference in reversed(self._models):  # an earlier wrapper of the same model may not be collected
            model = reference()
            if model is not None and any(id(one) in own for one in model.parameters()):
                return model
        raise ValueError(
            f"[smdp] shard_optimizer: the parameters of {type(optimizer).__name__} belong to no model that"
            " Accelerate has wrapped in smdp's DistributedDataParallel before. Pass the model first:"
            " prepare(model, optimizer)."
        )


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
