"""Recomputes activations in backward: `smp.set_activation_checkpointing`, `smp.patches.checkpoint`.

Both use torch's non-reentrant checkpoint. If they are applied to a module that contains several units, each
unit is recomputed separately, on the rank that holds it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint as plain_checkpoint

from smdp.torch.model_parallel.modules.distributed_model import DistributedModel

# Modules that a model does not call: containers, and the DistributedModel itself.
_UNCALLED = (nn.ModuleList, nn.ModuleDict, DistributedModel)


class _Recomputed:
    """Replaces a module's forward by one that is recomputed in backward.

    Args:
        plain: The module's own forward.
        preserve_rng_state: As for torch.utils.checkpoint.
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
    """Makes a module keep only its inputs for backward, and run its forward again there.

    A repeated call replaces the earlier setting.

    Args:
        module: A part of the model, before or after the model is wrapped.
        preserve_rng_state: Whether dropout draws the same numbers when the forward is recomputed.
        pack_args_as_tuple: Has no effect. Accepted only for an nn.Sequential, which passes tuples to its
            layers unchanged in any case.
        strategy: For an nn.Sequential, which layers are recomputed together: "each" separately, "contiguous"
            for all of them, or "group_N" for N at a time. Layers in different units are never recomputed
            together.

    Raises:
        ValueError: `module` is not a module, or one that is not called, such as a ModuleList or the wrapped
            model; or an argument is wrong.
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
    """Calls a module so that its forward is recomputed in backward.

    Args:
        module: A part of the model.
        *args: Positional arguments of the module.
        preserve_rng_state: As for set_activation_checkpointing().
        **kwargs: Keyword arguments of the module.

    Raises:
        ValueError: `module` is not a module, or one that is not called, such as a ModuleList or the wrapped
            model.
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
    """Calls an nn.Sequential so that the forwards of its layers are recomputed in backward.

    Args:
        sequential_module: A part of the model.
        input: Argument of the first layer.
        strategy: As for set_activation_checkpointing().
        preserve_rng_state: As for set_activation_checkpointing().
        pack_args_as_tuple: As for set_activation_checkpointing().

    Raises:
        ValueError: `sequential_module` is not an nn.Sequential, or the strategy is not valid.
    """
    if not isinstance(sequential_module, nn.Sequential):
        raise ValueError(
            f"[smdp] checkpoint_sequential got {type(sequential_module).__name__}; expected an"
            " nn.Sequential. Use checkpoint(module, ...) for any other module."
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
            f"[smdp] {call} got {type(module).__name__}; expected a torch.nn.Module that the model calls,"
            " for example each of model.get_module().layers"
        )


def _group_size(module: nn.Module, strategy: Any, pack_args_as_tuple: Any) -> int:
    """Returns the number of layers that are recomputed together."""
    if not isinstance(module, nn.Sequential):
        if strategy != "each" or pack_args_as_tuple:
            raise ValueError(
                f"[smdp] strategy = {strategy!r} and pack_args_as_tuple = {pack_args_as_tuple!r} are only for"
                f" an nn.Sequential, but this is a {type(module).__name__}; remove both arguments"
            )
        return 1
    found = re.fullmatch(r"group_([1-9]\d*)", strategy) if isinstance(strategy, str) else None
    sizes = {"each": 1, "contiguous": max(1, len(module))}
    if found is None and strategy not in sizes:
        raise ValueError(
            f"[smdp] strategy = {strategy!r} is not valid; allowed: 'each', 'contiguous', or 'group_N' with N"
            " layers, such as 'group_2'"
        )
    return int(found[1]) if found is not None else sizes[strategy]
