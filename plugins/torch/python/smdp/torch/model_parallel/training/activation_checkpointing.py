"""Activations computed again in backward: `smp.set_activation_checkpointing`, `smp.patches.checkpoint`.

Both are torch's non-reentrant checkpoint. Around modules of several partitions, or around several modules
that are never cut, each of these is computed again by itself, on the rank that holds it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint as plain_checkpoint

from smdp.torch.model_parallel.modules.distributed_model import DistributedModel

# What holds modules, and what a step runs otherwise.
_UNCALLED = (nn.ModuleList, nn.ModuleDict, DistributedModel)


class _Recomputed:
    """Takes the place of a module's forward.

    Args:
        plain: The module's own.
        preserve_rng_state: As for torch.
    """

    def __init__(self, plain: Callable[..., Any], preserve_rng_state: bool) -> None:
        self.plain = plain
        self._preserve = preserve_rng_state

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return plain_checkpoint(
            self.plain, *args, use_reentrant=False, preserve_rng_state=self._preserve, **kwargs
        )


def set_activation_checkpointing(
    module: nn.Module,
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
    strategy: str = "each",
) -> None:
    """Keep only what a module is given for its backward, and run its forward again there.

    Calling it again replaces what was set before.

    Args:
        module: Part of a model, before or after it is wrapped.
        preserve_rng_state: Dropout draws in backward what it drew in forward.
        pack_args_as_tuple: Accepted for an nn.Sequential, whose layers get tuples as they are either way.
        strategy: Of an nn.Sequential: "each" of its layers by itself, "contiguous" for all of them together,
            "group_N" for N together; what is cut never is together.

    Raises:
        ValueError: It is no module, or one that is not called, as a list or the wrapped model; or an argument
            is wrong.
    """
    _check(module, "smp.set_activation_checkpointing")
    size = _group_size(module, strategy, pack_args_as_tuple)
    if isinstance(module, nn.Sequential):
        module.forward = functools.partial(
            _run_in_groups, module, size=size, preserve_rng_state=preserve_rng_state
        )
    else:
        plain = module.forward
        module.forward = _Recomputed(
            plain.plain if isinstance(plain, _Recomputed) else plain, preserve_rng_state
        )


def checkpoint(module: nn.Module, *args: Any, preserve_rng_state: bool = True, **kwargs: Any) -> Any:
    """Call a module so that its backward runs its forward again.

    Args:
        module: Part of the model.
        *args: What the module is given.
        preserve_rng_state: As for set_activation_checkpointing().
        **kwargs: What the module is given, by name.

    Raises:
        ValueError: It is no module, or one that is not called, as a list or the wrapped model.
    """
    _check(module, "checkpoint")
    return plain_checkpoint(
        module, *args, use_reentrant=False, preserve_rng_state=preserve_rng_state, **kwargs
    )


def checkpoint_sequential(
    sequential_module: nn.Sequential,
    input: Any,
    strategy: str = "each",
    preserve_rng_state: bool = True,
    pack_args_as_tuple: bool = False,
) -> Any:
    """Call an nn.Sequential so that the backward of its layers runs their forwards again.

    Args:
        sequential_module: Part of the model.
        input: What its first layer is given.
        strategy: As for set_activation_checkpointing().
        preserve_rng_state: As for set_activation_checkpointing().
        pack_args_as_tuple: As for set_activation_checkpointing().

    Raises:
        ValueError: It is no nn.Sequential, or the strategy is none.
    """
    if not isinstance(sequential_module, nn.Sequential):
        raise ValueError(
            f"[smdp] checkpoint_sequential got {type(sequential_module).__name__}; allowed: an nn.Sequential,"
            " or checkpoint(module, ...) for another module"
        )
    size = _group_size(sequential_module, strategy, pack_args_as_tuple)
    return _run_in_groups(sequential_module, input, size=size, preserve_rng_state=preserve_rng_state)


def _run_in_groups(sequential: nn.Sequential, value: Any, *, size: int, preserve_rng_state: bool) -> Any:
    layers = list(sequential)
    for first in range(0, len(layers), size):
        group = functools.partial(_run_all, layers[first : first + size])
        value = plain_checkpoint(group, value, use_reentrant=False, preserve_rng_state=preserve_rng_state)
    return value


def _run_all(layers: list[nn.Module], value: Any) -> Any:
    for layer in layers:
        value = layer(value)
    return value


def _check(module: Any, call: str) -> None:
    if not isinstance(module, nn.Module) or isinstance(module, _UNCALLED):
        raise ValueError(
            f"[smdp] {call} got {type(module).__name__}; allowed: a torch.nn.Module that the model calls, for"
            " instance each of model.get_module().layers"
        )


def _group_size(module: nn.Module, strategy: Any, pack_args_as_tuple: Any) -> int:
    """Give how many layers are computed again together."""
    if not isinstance(module, nn.Sequential):
        if strategy != "each" or pack_args_as_tuple:
            raise ValueError(
                f"[smdp] strategy = {strategy!r} and pack_args_as_tuple = {pack_args_as_tuple!r} are for"
                f" nn.Sequential only, and this is {type(module).__name__}; allowed: neither"
            )
        return 1
    found = re.fullmatch(r"group_([1-9]\d*)", strategy) if isinstance(strategy, str) else None
    sizes = {"each": 1, "contiguous": max(1, len(module))}
    if found is None and strategy not in sizes:
        raise ValueError(
            f"[smdp] strategy = {strategy!r} is not valid; allowed: 'each', 'contiguous', 'group_N' with N"
            " layers, e.g. 'group_2'"
        )
    return int(found[1]) if found is not None else sizes[strategy]
