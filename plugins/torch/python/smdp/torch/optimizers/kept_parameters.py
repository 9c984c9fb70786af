"""Which parameters an optimizer keeps, as objects that may be new, with what it knows of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer

# Optimizers that were made of named parameters keep the names beside them.
NAMES = "param_names"


def keep_parameters(optimizer: Optimizer, kept: Mapping[Parameter, Parameter]) -> None:
    """Drops parameters from a plain optimizer, and replaces the others.

    Args:
        optimizer: Its groups and state change in place.
        kept: What takes the place of each parameter that stays; it may be the parameter itself.
    """
    for group in optimizer.param_groups:
        members = group["params"]
        group["params"] = [kept[each] for each in members if each in kept]
        names = zip(group.get(NAMES, ()), members, strict=False)
        group |= named(group, [name for name, each in names if each in kept])
        for each in members:
            found = optimizer.state.pop(each, None)
            if found is not None and each in kept:
                optimizer.state[kept[each]] = found


def named(group: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Returns the names of a group's parameters, where it was made with names."""
    return {NAMES: list(names)} if NAMES in group else {}
