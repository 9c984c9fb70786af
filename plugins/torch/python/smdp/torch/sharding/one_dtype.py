"""Refuses groups with several dtypes if the optimizer chooses a value by the first parameter of a group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharding.trial import REFUSALS, STEPS, random_values, trained

_SIZES = (4, 6)
_SCALES = (1.0, 1e-5)  # small gradients show terms such as `eps`


def check_dtypes(
    optimizer: Optimizer, groups: Iterable[Mapping[str, Any]], dtype_of: Callable[[Parameter], torch.dtype]
) -> None:
    """Tries small tensors of the dtypes of each group, together and alone, which must give the same bits.

    Args:
        optimizer: The optimizer, which is not changed.
        groups: Groups with their parameters.
        dtype_of: Returns the dtype in which a parameter is updated.

    Raises:
        ValueError: The update of a tensor depends on the dtypes of the others.
    """
    for number, group in enumerate(groups):
        dtypes = list(dict.fromkeys(dtype_of(one) for one in group["params"] if one.is_floating_point()))
        if len(dtypes) > 1 and _depends(optimizer, group, dtypes):
            name = type(optimizer).__name__
            raise ValueError(
                f"[smdp] ShardedOptimizer: group {number} has parameters of {', '.join(map(str, dtypes))},"
                f" and {name} updates a tensor differently if its group has other dtypes. Each rank has only"
                f" a part of a group. Create {name} with one group per dtype."
            )


def _depends(optimizer: Optimizer, group: Mapping[str, Any], dtypes: list[torch.dtype]) -> bool:
    tensors = [(dtype, scale) for dtype in dtypes for scale in _SCALES]
    values = [
        [
            (random_values(_SIZES[0] * _SIZES[1], number) * (scale if number else 1)).view(_SIZES).to(dtype)
            for dtype, scale in tensors
        ]
        for number in range(1 + STEPS)
    ]
    try:
        together = trained(optimizer, group, values).values
        alone = [
            trained(optimizer, group, [[one[place]] for one in values]).values[0]
            for place in range(len(tensors))
        ]
    except REFUSALS:
        return False  # the script's own steps raise this error as well
    return any(not torch.equal(one, other) for one, other in zip(alone, together, strict=True))
