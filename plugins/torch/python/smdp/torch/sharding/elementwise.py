"""Finds out whether an optimizer updates each element by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from smdp.torch.sharding.trial import NO_KEYS, REFUSALS, STEPS, StateKeys, random_values, trained

_ELEMENTS = 24
_CUT = 7
# Sizes of the pieces, from the first element on; None: one whole matrix.
_CUTS = ((_ELEMENTS,), (_CUT, _ELEMENTS - _CUT), None, (_CUT,))


def elementwise_keys(optimizer: Optimizer, group: Mapping[str, Any]) -> StateKeys | str:
    """Makes some steps on a small parameter, whole and cut, which must give the same bits.

    Args:
        optimizer: The optimizer, which is not changed.
        group: A group of its options.

    Returns:
        The keys of the state that these steps have created, or why its parameters cannot be cut.

    Raises:
        ValueError: The steps change nothing.
    """
    values = [random_values(_ELEMENTS, number) for number in range(1 + STEPS)]
    try:
        tried = [trained(optimizer, group, [_pieces(one, cut) for one in values]) for cut in _CUTS]
    except REFUSALS as error:
        return f"it cannot update a small parameter, whole and cut ({type(error).__name__}: {error})"
    after = [torch.cat([piece.reshape(-1) for piece in one.values]) for one in tried]
    whole = after[0]
    if any(not torch.equal(whole[: one.numel()], one) for one in after):
        return "its update of one element depends on other elements of the parameter"
    if torch.equal(whole, values[0]):
        raise ValueError(
            f"[smdp] ShardedOptimizer: {STEPS} steps of {type(optimizer).__name__} did not change a small"
            " parameter, so smdp cannot find out how it can be sharded. Wrap the optimizer with options with"
            " which it updates parameters."
        )
    keys = NO_KEYS
    for trial in tried:
        keys = keys.merged(trial.keys)
    return keys


def _pieces(whole: Tensor, cut: tuple[int, ...] | None) -> list[Tensor]:
    if cut is None:
        return [whole.view(4, -1)]
    return list(whole[: sum(cut)].split(list(cut)))
