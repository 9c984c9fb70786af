"""The state of an optimizer by parameter names, which can be loaded with any number of stages.

The format is the flat one of `torch.distributed.checkpoint.state_dict`, with keys such as
'state.NAME.exp_avg' and 'param_groups.NAME.lr'. Each parameter stores the hyperparameters of its
group, because the members of a group differ between ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import Optimizer

from smdp.torch.pipelining.state_dicts.state_entries import names_of

Room: TypeAlias = "Callable[[Parameter, str, torch.Size, torch.dtype], Tensor]"
"""Returns the tensor to fill, given a parameter and the key, shape and dtype of a part of its state."""

# Keys of a group that are not hyperparameters.
_MEMBERS = ("params", "param_names")


def named_state(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    state: Mapping[Parameter, Mapping[str, Any]] | None = None,
) -> dict[str, dict[str, Any]]:
    """Returns the state and hyperparameters of each parameter under flat keys, by the parameter's name.

    Args:
        optimizer: The optimizer of this rank's parameters.
        names: The names of these parameters.
        state: What this rank has of the state of each parameter. Default: the optimizer's.

    Raises:
        ValueError: The optimizer holds a parameter without a name, or state other than tensors and numbers.
    """
    found = {}
    state = optimizer.state if state is None else state
    for name, parameter, group in _members(optimizer, names):
        flat = {f"param_groups.{name}.{key}": item for key, item in group.items() if key not in _MEMBERS}
        for key, item in state.get(parameter, {}).items():
            if not isinstance(item, (Tensor, int, float, bool, type(None))):
                raise ValueError(
                    f"[smdp] {type(optimizer).__name__} keeps a {type(item).__name__} {key!r} for parameter"
                    f" {name!r}, but a checkpoint for any number of stages can contain only tensors and"
                    " numbers per parameter. Save without the optimizer."
                )
            flat[f"state.{name}.{key}"] = item
        found[name] = flat
    return found


def load_named_state(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    flat: Mapping[str, Any],
    *,
    fills_groups: bool = True,
) -> None:
    """Loads state and hyperparameters into an optimizer.

    Args:
        optimizer: The optimizer of this rank's parameters.
        names: The names of these parameters.
        flat: The results of named_state() for all of these parameters, merged.
        fills_groups: Whether the optimizer needs groups with all of its hyperparameters. Those that `flat`
            lacks keep their values.

    Raises:
        ValueError: Parameters of one group have different hyperparameters.
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
        kept = group if fills_groups else {}
        groups.append({**kept, **taken, "params": [places[parameter] for parameter in group["params"]]})
    optimizer.load_state_dict({"state": states, "param_groups": groups})


def whole_room(parameter: Parameter, key: str, size: torch.Size, dtype: torch.dtype) -> Tensor:
    """Returns an uninitialized tensor for a part of a parameter's state."""
    # AdamW's step counter stays on the host; load_state_dict moves tensors that belong elsewhere.
    return torch.empty(size, dtype=dtype, device=parameter.device if len(size) > 0 else "cpu")


def room_for_state(
    optimizer: Optimizer,
    names: Mapping[Parameter, str],
    saved: Mapping[str, tuple[torch.Size, torch.dtype] | None],
    room: Room = whole_room,
) -> dict[str, Any]:
    """Returns uninitialized tensors for the state that a checkpoint holds of an optimizer's parameters.

    Args:
        optimizer: The optimizer of this rank's parameters.
        names: The names of these parameters.
        saved: The flat keys of the checkpoint, with shape and dtype for tensors.
        room: Makes the tensors to fill. Default: whole tensors.

    Raises:
        ValueError: The checkpoint lacks a parameter of the optimizer, or has one of this rank that the
            optimizer does not train.
    """
    by_name: dict[str, list[str]] = {}
    wanted = set(names.values())
    for key in saved:
        name = _parts(key)[1]
        if name in wanted:
            by_name.setdefault(name, []).append(key)
    found: dict[str, Any] = {}
    for name, parameter, _ in _members(optimizer, names):
        if name not in by_name:
            raise ValueError(
                f"[smdp] the checkpoint has no optimizer state for parameter {name!r}, which"
                f" {type(optimizer).__name__} trains; use a checkpoint that was saved with an optimizer of"
                " the same parameters, or call load() without an optimizer"
            )
        for key in by_name[name]:
            described = saved[key]
            if described is None:
                found[key] = None
            else:
                found[key] = room(parameter, _parts(key)[2], *described)
        del by_name[name]
    if by_name:
        raise ValueError(
            f"[smdp] the checkpoint has optimizer state for {names_of(list(by_name))}, which"
            f" {type(optimizer).__name__} does not train. Create the optimizer with the same parameters as"
            " when the checkpoint was saved, or call load() without an optimizer."
        )
    return found


def _members(
    optimizer: Optimizer, names: Mapping[Parameter, str]
) -> Iterator[tuple[str, Parameter, dict[str, Any]]]:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter not in names:
                raise ValueError(
                    f"[smdp] {type(optimizer).__name__} holds a parameter of shape {list(parameter.shape)}"
                    " that does not belong to this rank. Create the optimizer from the parameters() of the"
                    " split model."
                )
            yield names[parameter], parameter, group


def _parts(key: str) -> tuple[str, str, str]:
    """Splits a key such as 'state.h.0.weight.exp_avg', in which only the name in the middle contains dots."""
    kind, _, rest = key.partition(".")
    name, _, item = rest.rpartition(".")
    return kind, name, item


def _check_same(first: str, one: Mapping[str, Any], second: str, other: Mapping[str, Any]) -> None:
    for key in {**one, **other}:
        if key not in one or key not in other or not _is_same(one[key], other[key]):
            raise ValueError(
                f"[smdp] the checkpoint has {key} = {one.get(key)!r:.120} for parameter {first!r} and"
                f" {other.get(key)!r:.120} for {second!r}, but both are in one group of the optimizer. Create"
                " the same parameter groups as when the checkpoint was saved."
            )


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.dtype == other.dtype and bool(torch.equal(one, other))
    return type(one) is type(other) and bool(one == other)
