"""Decides which parameters may be cut, and which must stay whole on one rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.sharding.elementwise import elementwise_keys
from smdp.torch.sharding.per_tensor import per_tensor_keys
from smdp.torch.sharding.trial import NO_KEYS, StateKeys
from smdp.torch.sharding.trial_copy import trial_copy


class Ways(NamedTuple):
    """How an optimizer's groups can be sharded.

    Attributes:
        keys: What the optimizer stores for each parameter.
        whole: Parameters that must not be cut.
        is_whole: Whether this is true of all groups.
    """

    keys: StateKeys
    whole: list[Parameter]
    is_whole: bool


def ways_to_shard(optimizer: Optimizer, groups: Iterable[Mapping[str, Any]]) -> Ways:
    """Tries the optimizer with the options of each group.

    Args:
        optimizer: The optimizer, which is not changed.
        groups: Groups with their parameters.

    Raises:
        ValueError: A group can be divided neither by elements nor by tensors, or the optimizer cannot be
            copied.
    """
    trial_copy(optimizer)  # an error of it must not look like one of a step
    keys, whole, is_whole = NO_KEYS, [], True
    for number, group in enumerate(groups):
        found = elementwise_keys(optimizer, group)
        if isinstance(found, str):
            by_tensors = per_tensor_keys(optimizer, group)
            if isinstance(by_tensors, str):
                name = type(optimizer).__name__
                raise ValueError(
                    f"[smdp] ShardedOptimizer: {name} cannot be divided between ranks (group {number}):"
                    f" neither by elements, because {found}; nor by tensors, because {by_tensors}. Use an"
                    " optimizer that updates each element, or each tensor, by itself, or leave this one"
                    " unsharded."
                )
            found = by_tensors
            whole.extend(group["params"])
        else:
            is_whole = False
        keys = keys.merged(found)
    return Ways(keys, whole, is_whole)
