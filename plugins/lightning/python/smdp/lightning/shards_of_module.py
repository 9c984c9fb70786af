"""LightningModules whose parameters are sharded."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

from lightning.pytorch.plugins import HalfPrecision
from torch import nn
from torch.optim import Optimizer

from smdp.lightning.divided_models import clip_by_norm
from smdp.torch import ShardedDataParallel
from smdp.torch.plugin_support import GatheredStates

# Arguments of DDP and their names in ShardedDataParallel; the others change nothing there.
_NAMES = {
    "find_unused_parameters": "unused_parameters",
    "broadcast_buffers": "broadcast_buffers",
    "process_group": "process_group",
}


class ShardsOfModule:
    """Wraps a LightningModule in ShardedDataParallel, and gathers the states of its optimizers.

    Args:
        options: Keyword arguments of ShardedDataParallel.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._wrapper: ShardedDataParallel | None = None
        self._states: weakref.WeakKeyDictionary[Optimizer, GatheredStates] = weakref.WeakKeyDictionary()

    def wrapper_of(self, module: nn.Module | None) -> ShardedDataParallel | None:
        """Returns the wrapper of a module, or None if it is not sharded."""
        found = self._wrapper
        return found if found is not None and (found.module is module or found is module) else None

    def check(self, plugin: Any) -> None:
        """Checks Lightning's precision plugin before it converts the module.

        Raises:
            ValueError: It scales the loss, or keeps parameters in 16 bits.
        """
        reason = None
        if getattr(plugin, "scaler", None) is not None:
            reason = "ranks would scale the loss by what they find in their own shards. Use 'bf16-mixed'"
        elif isinstance(plugin, HalfPrecision):
            reason = (
                "shards would have 16 bits, without masters. Use SmdpStrategy(precision='bf16'), which"
                " gathers parameters in 16 bits"
            )
        if reason is not None:
            raise ValueError(
                f"[smdp] SmdpStrategy: shard_parameters and precision={plugin.precision!r} cannot be used"
                f" together, because {reason}."
            )

    def shard(self, module: nn.Module, plugin: Any, options: Mapping[str, Any]) -> ShardedDataParallel:
        """Distributes the parameters of a module.

        Args:
            module: The module, which is changed in place.
            plugin: Lightning's precision plugin, which clips the shards from now on.
            options: The keyword arguments of DDPStrategy for DDP.

        Raises:
            ValueError: The module cannot be sharded.
        """
        chosen = {name: options[known] for known, name in _NAMES.items() if known in options}
        self._wrapper = ShardedDataParallel(module, **self._options, **chosen)
        plugin.clip_grad_by_norm = clip_by_norm
        return self._wrapper

    def gather_states(self, optimizer: Optimizer) -> None:
        """Makes an optimizer of shards save and load whole states."""
        self._states[optimizer] = GatheredStates(optimizer)

    def collect(self, optimizer: Optimizer, *, is_kept: bool) -> None:
        """Gathers the state of an optimizer where it will be saved. Collective."""
        self._states[optimizer].collect(is_kept=is_kept)
