"""Finds out whether an optimizer updates each tensor by itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from smdp.torch.sharding.trial import NO_KEYS, REFUSALS, STEPS, StateKeys, random_values, trained


def per_tensor_keys(optimizer: Optimizer, group: Mapping[str, Any]) -> StateKeys | str:
    """Makes some steps on small tensors, together and alone, which must give the same bits.

    The tensors have as many dimensions as those of the group.

    Args:
        optimizer: The optimizer, which is not changed.
        group: A group with its parameters.

    Returns:
        The keys of the state that these steps have created, or why its tensors cannot be given to different
        ranks.
    """
    dimensions = sorted({one.dim() for one in group["params"]}) or [2]
    shapes = [shape for count in dimensions for shape in _shapes(count)]
    values = [[_random(shape, number) for shape in shapes] for number in range(1 + STEPS)]
    try:
        together = trained(optimizer, group, values)
        alone = [trained(optimizer, group, [[one[i]] for one in values]) for i in range(len(shapes))]
    except REFUSALS as error:
        return f"it cannot update small tensors ({type(error).__name__}: {error})"
    if any(not torch.equal(one.values[0], other) for one, other in zip(alone, together.values, strict=True)):
        return "its update of one tensor depends on the other tensors"
    if all(torch.equal(one, other) for one, other in zip(values[0], together.values, strict=True)):
        return "its steps did not change small tensors"
    return NO_KEYS.merged(together.keys)


def updates_each_tensor_alone(optimizer: Optimizer) -> bool:
    """Returns whether trials show for all groups that the update of a tensor does not depend on others.

    The answer is False for an optimizer that cannot be tried.
    """
    with torch.random.fork_rng(devices=[]):
        try:
            found = [per_tensor_keys(optimizer, group) for group in optimizer.param_groups]
        except Exception:  # noqa: BLE001 - copying it or its step can raise anything
            return False
    return not any(isinstance(each, str) for each in found)


def _shapes(dimensions: int) -> list[tuple[int, ...]]:
    return [
        tuple(3 + place % 2 for place in range(dimensions)),
        tuple(6 - place % 2 for place in range(dimensions)),
    ]


def _random(shape: tuple[int, ...], number: int) -> Tensor:
    return random_values(math.prod(shape), number).view(shape)
