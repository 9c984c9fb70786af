"""Drops and replaces the parameters of an optimizer together with their state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer

# The key under which torch keeps the names in groups made of named parameters.
NAMES = "param_names"


def keep_parameters(optimizer: Optimizer, kept: Mapping[Parameter, Parameter]) -> None:
    """Drops parameters from a plain optimizer, and replaces the others.

    Args:
        optimizer: The optimizer, whose groups and state are changed in place.
        kept: The replacement of each parameter that stays, which may be the parameter itself.
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
    """Returns the entry with the names of a group's parameters, empty if the group has no names."""
    return {NAMES: list(names)} if NAMES in group else {}
