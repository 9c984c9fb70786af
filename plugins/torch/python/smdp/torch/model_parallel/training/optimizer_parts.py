"""Converts between the state of the whole model's optimizer and the parts of several partitions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from smdp.torch.optimizers.kept_parameters import NAMES, named


def whole_state(
    parts: Iterable[Mapping[str, Any]],
    names: Sequence[Sequence[str]],
    groups: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Returns the state of the whole model's optimizer, as torch would return it without smdp.

    Args:
        parts: The states of each rank's parameters, by name.
        names: The names of all parameters, by group.
        groups: The groups of one rank's optimizer, for the hyperparameters, which are the same on all ranks.
    """
    found: dict[str, Any] = {}
    for part in parts:
        for name, values in part.items():
            found.setdefault(name, values)
    place = {name: index for index, name in enumerate(name for group in names for name in group)}
    return {
        "state": {place[name]: found[name] for name in place if name in found},
        "param_groups": [
            {**group, "params": [place[name] for name in members], **named(group, members)}
            for group, members in zip(groups, names, strict=True)
        ],
    }


def own_part(
    whole: Mapping[str, Any],
    saved_groups: Sequence[Mapping[str, Any]],
    groups: Sequence[Mapping[str, Any]],
    all_names: Sequence[Sequence[str]],
    own_names: Sequence[Sequence[str]],
) -> dict[str, Any]:
    """Returns this rank's part of a whole state.

    Args:
        whole: The state of each parameter, by name.
        saved_groups: The groups of the state.
        groups: The groups of this rank's optimizer.
        all_names: The names of all ranks' parameters, by group.
        own_names: The names of this rank's parameters, by group.

    Raises:
        ValueError: The state has other groups or parameters.
    """
    lacking = [name for members in all_names for name in members if name not in whole]
    if lacking or len(saved_groups) != len(groups):
        raise ValueError(
            f"[smdp] the optimizer's state has {len(saved_groups)} groups and {len(whole)} parameters, and"
            f" lacks {lacking[0] if lacking else 'a group'}; load a state of the same model and groups, or"
            " the parts of all ranks"
        )
    taken, values, index = [], {}, 0
    for saved, mine, members in zip(saved_groups, groups, own_names, strict=True):
        for place, name in enumerate(members, index):
            if whole.get(name) is not None:
                values[place] = whole[name]
        places = list(range(index, index + len(members)))
        taken.append({**saved, "params": places, **named(mine, mine.get(NAMES, ()))})
        index += len(members)
    return {"state": values, "param_groups": taken}


def by_name(given: Mapping[str, Any], names: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns the state of each parameter of the model, by name; None for a parameter without state."""
    return {
        name: given["state"].get(place)
        for group, members in zip(given["param_groups"], names, strict=True)
        for place, name in zip(group["params"], members, strict=True)
        if name
    }


def check_sizes(whole: Mapping[str, Any], own: Sequence[Sequence[Any]]) -> None:
    """Checks that the groups of a state have as many parameters as those of an optimizer.

    Raises:
        ValueError: The numbers differ.
    """
    sizes, wanted = [len(group["params"]) for group in whole["param_groups"]], [len(group) for group in own]
    if sizes != wanted:
        raise ValueError(
            f"[smdp] the optimizer's state has groups of {sizes} parameters, but the optimizer has groups of"
            f" {wanted}; load a state of the same model and groups"
        )
