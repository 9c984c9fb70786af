"""The state of an optimizer by names of parameters, so that any other number of stages can take it.

The form is the flat one of `torch.distributed.checkpoint.state_dict`: 'state.NAME.exp_avg' and
'param_groups.NAME.lr'. A parameter carries its group's hyperparameters with it, as groups have other
members on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

# Of a group, what is no hyperparameter.
_MEMBERS = ("params", "param_names")


def named_state(optimizer: Optimizer, names: Mapping[Parameter, str]) -> dict[str, dict[str, Any]]:
    """Give the state and hyperparameters of each parameter, under flat keys, by the parameter's name.

    Raises:
        ValueError: The optimizer holds a parameter without a name, or state that belongs to no one parameter.
    """
    found = {}
    for name, parameter, group in _members(optimizer, names):
        flat = {f"param_groups.{name}.{key}": item for key, item in group.items() if key not in _MEMBERS}
        for key, item in optimizer.state.get(parameter, {}).items():
            if not isinstance(item, (Tensor, int, float, bool, type(None))):
                raise ValueError(
                    f"[smdp] {type(optimizer).__name__} keeps {type(item).__name__} {key!r} for parameter"
                    f" {name!r}; allowed in a checkpoint that any number of stages can load: tensors and"
                    " numbers of one parameter each. Save without the optimizer."
                )
            flat[f"state.{name}.{key}"] = item
        found[name] = flat
    return found


def load_named_state(optimizer: Optimizer, names: Mapping[Parameter, str], flat: Mapping[str, Any]) -> None:
    """Put state and hyperparameters into an optimizer.

    Args:
        optimizer: Of this rank's parameters.
        names: Theirs.
        flat: What named_state() gave, of all of them, joined.

    Raises:
        ValueError: Parameters of one group had different hyperparameters.
    """
    by_name: dict[tuple[str, str], dict[str, Any]] = {}
    for key, value in flat.items():
        kind, name, item = _parts(key)
        by_name.setdefault((kind, name), {})[item] = value
    places: dict[Parameter, int] = {}
    states: dict[int, dict[str, Any]] = {}
    groups: list[dict[str, Any]] = []
    for group in optimizer.param_groups:
        first, taken = "", dict[str, Any]()
        for parameter in group["params"]:
            name = names[parameter]
            hyperparameters = by_name.get(("param_groups", name), {})
            if not first:
                first, taken = name, hyperparameters
            _check_same(first, taken, name, hyperparameters)
            places[parameter] = len(places)
            if ("state", name) in by_name:
                states[places[parameter]] = by_name["state", name]
        groups.append({**group, **taken, "params": [places[parameter] for parameter in group["params"]]})
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def room_for_state(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    saved: Mapping[str, tuple[torch.Size, torch.dtype] | None],
) -> dict[str, Any]:
    """Give room for what a checkpoint holds of this optimizer's parameters.

    Args:
        optimizer: Of this rank's parameters.
        names: Theirs.
        saved: Flat keys of the checkpoint, with shape and dtype of tensors.

    Raises:
        ValueError: A parameter of the optimizer is not in it.
    """
    by_name: dict[str, list[str]] = {}
    wanted = set(names.values())
    for key in saved:
        name = _parts(key)[1]
        if name in wanted:
            by_name.setdefault(name, []).append(key)
    room: dict[str, Any] = {}
    for name, parameter, _ in _members(optimizer, names):
        if name not in by_name:
            raise ValueError(
                f"[smdp] the checkpoint lacks the optimizer's state of parameter {name!r}, which"
                f" {type(optimizer).__name__} trains; allowed: a checkpoint that was saved with an optimizer"
                " of the same parameters, or load() without an optimizer"
            )
        for key in by_name[name]:
            described = saved[key]
            if described is None:
                room[key] = None
            else:
                # AdamW's step stays on the host; load_state_dict moves what has to be elsewhere.
                device = parameter.device if len(described[0]) > 0 else "cpu"
                room[key] = torch.empty(described[0], dtype=described[1], device=device)
    return room


def _members(
    optimizer: Optimizer, names: Mapping[Parameter, str]
) -> Iterator[tuple[str, Parameter, dict[str, Any]]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                raise ValueError(
                    f"[smdp] {type(optimizer).__name__} holds a parameter of shape {list(parameter.shape)}"
                    " that is none of this rank's. Make the optimizer from the parameters() of the"
                    " split model."
                )
            yield names[parameter], parameter, group


def _parts(key: str) -> tuple[str, str, str]:
    """Split 'state.h.0.weight.exp_avg': only the name in the middle has dots."""
    kind, _, rest = key.partition(".")
    name, _, item = rest.rpartition(".")
    return kind, name, item


def _check_same(first: str, one: Mapping[str, Any], second: str, other: Mapping[str, Any]) -> None:
    for key in {**one, **other}:
        if key not in one or key not in other or not _is_same(one[key], other[key]):
            raise ValueError(
                f"[smdp] the checkpoint has {key} = {one.get(key)!r:.120} for parameter {first!r} and"
                f" {other.get(key)!r:.120} for {second!r}, which share a group of the optimizer. Make the"
                " groups as they were when it was saved."
            )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)
