"""Recomputes activations in backward: `smp.set_activation_checkpointing`, `smp.patches.checkpoint`.

Modules run by a rule of `smdp.torch.recompute`. If a module contains several units of a pipeline, the units
follow its rule, each on the rank that holds it. So groups never extend over a cut.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from smdp.torch.model_parallel.modules.distributed_model import DistributedModel
from smdp.torch.recompute.policies import read_policy
from smdp.torch.recompute.recomputed_forward import recompute, run_by
from smdp.torch.recompute.rules import FixedRule

# Modules that a model does not call: containers, and the DistributedModel itself.
_UNCALLED = (nn.ModuleList, nn.ModuleDict, DistributedModel)


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
            for all of them, or "group_N" for N at a time. Layers on different partitions are never
            recomputed together.

    Raises:
        ValueError: `module` is not a module, or one that is not called, such as a ModuleList or the wrapped
            model; or an argument is wrong.
    """
    _check(module, "smp.set_activation_checkpointing")
    rule = _rule(module, strategy, pack_args_as_tuple, preserve_rng_state)
    layers = dict(module.named_children()) if isinstance(module, nn.Sequential) else {"": module}
    for name, layer in layers.items():
        recompute(f"{name} {type(layer).__name__}".strip(), layer, rule)


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
    rule = FixedRule(preserves_random_numbers=preserve_rng_state)
    return run_by(rule, type(module).__name__, module, args, kwargs)


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
    rule = _rule(sequential_module, strategy, pack_args_as_tuple, preserve_rng_state)
    for place, layer in enumerate(sequential_module):
        input = run_by(rule, f"{place} {type(layer).__name__}", layer, (input,), {})
    return input


def _check(module: Any, call: str) -> None:
    if not isinstance(module, nn.Module) or isinstance(module, _UNCALLED):
        raise ValueError(
            f"[smdp] {call} got {type(module).__name__}; expected a torch.nn.Module that the model calls,"
            " for example each of model.get_module().layers"
        )


def _rule(module: nn.Module, strategy: Any, pack_args_as_tuple: Any, preserve_rng_state: bool) -> FixedRule:
    if not isinstance(module, nn.Sequential):
        if strategy != "each" or pack_args_as_tuple:
            raise ValueError(
                f"[smdp] strategy = {strategy!r} and pack_args_as_tuple = {pack_args_as_tuple!r} are only for"
                f" an nn.Sequential, but this is a {type(module).__name__}; remove both arguments"
            )
        return FixedRule(preserves_random_numbers=preserve_rng_state)
    is_known = isinstance(strategy, str) and re.fullmatch(r"each|contiguous|group_[1-9]\d*", strategy)
    if not is_known:
        raise ValueError(
            f"[smdp] strategy = {strategy!r} is not valid; allowed: 'each', 'contiguous', or 'group_N' with N"
            " layers, such as 'group_2'"
        )
    return FixedRule(read_policy(strategy).size, preserves_random_numbers=preserve_rng_state)
