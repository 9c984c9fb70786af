"""Finds out whether an optimizer updates each element by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from smdp.torch.sharding.trial import NO_KEYS, REFUSALS, STEPS, StateKeys, Trial, random_values, trained

_ELEMENTS = 48
_CUT = 7
# Sizes of the pieces of a vector, from the first element on.
_CUTS = ((_ELEMENTS,), (_CUT, _ELEMENTS - _CUT), (_CUT,))
# Shapes by the number of dimensions. The one without dimensions is that of the first element.
_SHAPES = ((), (48,), (6, 8), (4, 3, 4), (2, 3, 2, 4), (2, 3, 2, 2, 2))
_LARGE = (130, 130)
_LARGE_CUTS = (7_000, 9_900)


def elementwise_keys(optimizer: Optimizer, group: Mapping[str, Any]) -> StateKeys | str:
    """Makes some steps on parameters, whole and cut, which must give the same bits.

    The whole ones have as many dimensions as those of the group. Another one is a larger matrix, because
    some optimizers have a rule of their own for large tensors.

    Args:
        optimizer: The optimizer, which is not changed.
        group: A group with its parameters.

    Returns:
        The keys of the state that these steps have created, or why its parameters cannot be cut.

    Raises:
        ValueError: The steps change nothing.
    """
    values = _values(_ELEMENTS)
    dimensions = {2} | {min(one.dim(), len(_SHAPES) - 1) for one in group["params"]}
    shapes = [_SHAPES[count] for count in sorted(dimensions)]
    large = _values(math.prod(_LARGE))
    try:
        tried = [trained(optimizer, group, [_pieces(one, cut) for one in values]) for cut in _CUTS]
        tried += [trained(optimizer, group, [[_first(one, shape)] for one in values]) for shape in shapes]
        matrix = trained(optimizer, group, [[_first(one, _LARGE)] for one in large])
        pieces = trained(optimizer, group, [_pieces(one, _LARGE_CUTS) for one in large])
    except REFUSALS as error:
        return f"it cannot update a small parameter, whole and cut ({type(error).__name__}: {error})"
    after = [_flat(one) for one in tried]
    whole = after[0]
    is_same = all(torch.equal(whole[: one.numel()], one) for one in after)
    if not is_same or not torch.equal(_flat(matrix), _flat(pieces)):
        return "its update of one element depends on other elements of the parameter"
    if torch.equal(whole, values[0]):
        raise ValueError(
            f"[smdp] ShardedOptimizer: {STEPS} steps of {type(optimizer).__name__} did not change a small"
            " parameter, so smdp cannot find out how it can be sharded. Wrap the optimizer with options with"
            " which it updates parameters."
        )
    keys = NO_KEYS
    for trial in (*tried, matrix, pieces):
        keys = keys.merged(trial.keys)
    return keys


def _values(count: int) -> list[Tensor]:
    return [random_values(count, number) for number in range(1 + STEPS)]


def _pieces(whole: Tensor, cut: tuple[int, ...]) -> list[Tensor]:
    return list(whole[: sum(cut)].split(list(cut)))


def _first(whole: Tensor, shape: tuple[int, ...]) -> Tensor:
    return whole[: math.prod(shape)].view(shape)


def _flat(trial: Trial) -> Tensor:
    return torch.cat([piece.reshape(-1) for piece in trial.values])
