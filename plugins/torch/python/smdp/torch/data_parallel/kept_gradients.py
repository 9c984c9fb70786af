"""Saves and restores the parts of gradients that compression keeps for later steps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smdp import _core
from smdp.torch.data_parallel.gradient_hooks import GradientHooks

_PARTS = 3  # as GradientReducer::kKeptParts


def copy_kept(group: _core.Group, hooks: GradientHooks, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the kept values by parameter name, without zeros, and a description of their run."""
    if hooks.deferral is not None:
        hooks.deferral.settle()
    coded: dict[str, dict[int, tuple[int, Tensor]]] = {}
    for index, (name, dtype, count) in enumerate(hooks.registered):
        if dtype is not torch.float32 or index in hooks.sparse.indices:
            continue
        values = torch.empty(count)
        parts = {
            part: _trimmed(values)
            for part in range(_PARTS)
            if hooks.reducer.copy_kept(index, part, values.data_ptr())
        }
        if parts:
            coded[name] = parts
    names = [name for name, _, _ in hooks.registered]
    velocity = {
        names[index]: own[0].clone() if hooks.shards is None else torch.cat(own)
        for index, own in hooks.momentum.velocity.items()
        if own
    }
    return {"of": _owner(group, hooks, options), "coded": coded, "velocity": velocity}


def set_kept(
    group: _core.Group, hooks: GradientHooks, options: Mapping[str, Any], kept: Mapping[str, Any]
) -> None:
    """Restores the result of `copy_kept()`.

    Raises:
        ValueError: `kept` belongs to a different run, or `copy_kept()` did not make it.
    """
    _check_form(kept)
    own = _owner(group, hooks, options)
    for name in [*own, *kept["of"].keys() - own.keys()]:
        given, value = kept["of"].get(name), own.get(name)
        if name == "parameters":
            value, given = _first_difference(own[name], given)
        if given != value:
            raise ValueError(
                f"[smdp] load_residuals(): the residuals were saved with {name}={given!r}, but here it is"
                f" {value!r}. Residuals fit only the run that they come from. Continue without loading them."
            )
    _check_parts(hooks, kept)
    for index, (name, _, count) in enumerate(hooks.registered):
        for part, (first, values) in kept["coded"].get(name, {}).items():
            whole = torch.zeros(count)
            whole[first : first + values.numel()] = values
            hooks.reducer.set_kept(index, part, whole.data_ptr())
        if name in kept["velocity"]:
            given = kept["velocity"][name].clone()
            sizes = None if hooks.shards is None else hooks.shards.own_sizes(index)
            hooks.momentum.velocity[index] = [given] if sizes is None else list(given.split(sizes))


def _check_form(kept: Any) -> None:
    parts = ("of", "coded", "velocity")
    is_whole = isinstance(kept, Mapping) and all(isinstance(kept.get(name), Mapping) for name in parts)
    if not is_whole or not all(_are_parts(one) for one in kept["coded"].values()):
        raise ValueError(
            "[smdp] load_residuals() needs the result of residuals(), a dict with 'of', 'coded' and"
            " 'velocity', but got something else."
        )


def _are_parts(parts: Any) -> bool:
    """Returns whether the parts of a parameter have the form that copy_kept() gives them."""
    return isinstance(parts, Mapping) and all(
        part in range(_PARTS)
        and isinstance(one, tuple | list)
        and len(one) == 2
        and isinstance(one[0], int)
        and one[0] >= 0
        and isinstance(one[1], Tensor)
        and one[1].dim() == 1
        for part, one in parts.items()
    )


def _check_parts(hooks: GradientHooks, kept: Mapping[str, Any]) -> None:
    counts = {name: count for name, _, count in hooks.registered}
    shapes = {
        one.name: list(parameter.shape) if hooks.shards is None else [sum(hooks.shards.own_sizes(index))]
        for index, (one, parameter) in enumerate(zip(hooks.registered, hooks.parameters, strict=True))
    }
    for name, parts in kept["coded"].items():
        for first, values in parts.values():
            if first + values.numel() > counts.get(name, 0):
                raise ValueError(
                    f"[smdp] load_residuals(): the residuals have {first + values.numel()} elements of"
                    f" gradient {name!r}, which has {counts.get(name, 0)} here."
                )
    for name, velocity in kept["velocity"].items():
        given = list(velocity.shape) if isinstance(velocity, Tensor) else type(velocity).__name__
        if given != shapes.get(name):
            raise ValueError(
                f"[smdp] load_residuals(): the velocity of gradient {name!r} is {given} in the residuals and"
                f" {shapes.get(name, 'missing')} here."
            )


def _owner(group: _core.Group, hooks: GradientHooks, options: Mapping[str, Any]) -> dict[str, Any]:
    wire = {name: options[name] for name in ("compression", "topk_ratio", "topk_momentum")}
    parameters = [f"{name} of {count} elements" for name, _, count in hooks.registered]
    # Residuals of earlier versions, which had no shards, do not say so.
    shards = {} if hooks.scope == "none" else {"shards": hooks.scope}
    return {"rank": group.rank, "hosts": group.hosts, "parameters": parameters, **wire, **shards}


def _first_difference(here: list[str], given: Any) -> tuple[Any, Any]:
    """Returns the first pair of entries that differ, or (None, None)."""
    if not isinstance(given, list):
        return f"a list of {len(here)}", given
    pairs = itertools.zip_longest(here, given, fillvalue="missing")
    return next(((one, other) for one, other in pairs if one != other), (None, None))


def _trimmed(values: Tensor) -> tuple[int, Tensor]:
    """Removes the zeros at both ends, because a rank compresses only its own shard of a fusion buffer.

    Returns:
        The index of the first value, and the values.
    """
    there = (values != 0).to(torch.uint8)
    first, behind = int(there.argmax()), values.numel() - int(there.flip(0).argmax())
    return first, values[first:behind].clone()
