"""What compression keeps of gradients for later steps, as tensors for a checkpoint of this rank."""

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
    """Returns what is kept, by the parameter's name, and what it belongs to; what is zero is left out."""
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
    velocity = {names[index]: one.clone() for index, one in hooks.momentum.velocity.items()}
    return {"of": _owner(group, hooks, options), "coded": coded, "velocity": velocity}


def set_kept(
    group: _core.Group, hooks: GradientHooks, options: Mapping[str, Any], kept: Mapping[str, Any]
) -> None:
    """Go on as after the steps that left it.

    Raises:
        ValueError: It belongs to something else, or is nothing that copy_kept() gives.
    """
    _check_form(kept)
    for name, value in _owner(group, hooks, options).items():
        given = kept["of"].get(name)
        if name == "parameters":
            value, given = _first_difference(value, given)
        if given != value:
            raise ValueError(
                f"[smdp] load_residuals(): {name} is {value!r} here and was {given!r} where they come from;"
                " residuals belong to one way to train. Leave them out: training goes on with none."
            )
    _check_parts(hooks, kept)
    for index, (name, _, count) in enumerate(hooks.registered):
        for part, (first, values) in kept["coded"].get(name, {}).items():
            whole = torch.zeros(count)
            whole[first : first + values.numel()] = values
            hooks.reducer.set_kept(index, part, whole.data_ptr())
        if name in kept["velocity"]:
            hooks.momentum.velocity[index] = kept["velocity"][name].clone()


def _check_form(kept: Any) -> None:
    parts = ("of", "coded", "velocity")
    is_whole = isinstance(kept, Mapping) and all(isinstance(kept.get(name), Mapping) for name in parts)
    if not is_whole or not all(_are_parts(one) for one in kept["coded"].values()):
        raise ValueError(
            "[smdp] load_residuals() got something else than residuals() gives, which has 'of', 'coded' and"
            " 'velocity'."
        )


def _are_parts(parts: Any) -> bool:
    """Whether these are of the form that copy_kept() gives a parameter's."""
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
        name: list(one.shape) for (name, _, _), one in zip(hooks.registered, hooks.parameters, strict=True)
    }
    for name, parts in kept["coded"].items():
        for first, values in parts.values():
            if first + values.numel() > counts.get(name, 0):
                raise ValueError(
                    f"[smdp] load_residuals(): they have {first + values.numel()} elements of gradient"
                    f" {name!r}, which has {counts.get(name, 0)} here."
                )
    for name, velocity in kept["velocity"].items():
        given = list(velocity.shape) if isinstance(velocity, Tensor) else type(velocity).__name__
        if given != shapes.get(name):
            raise ValueError(
                f"[smdp] load_residuals(): they have a velocity of {given} for gradient {name!r}, which is"
                f" {shapes.get(name, 'not there')} here."
            )


def _owner(group: _core.Group, hooks: GradientHooks, options: Mapping[str, Any]) -> dict[str, Any]:
    wire = {name: options[name] for name in ("compression", "topk_ratio", "topk_momentum")}
    parameters = [f"{name} of {count} elements" for name, _, count in hooks.registered]
    return {"rank": group.rank, "hosts": group.hosts, "parameters": parameters, **wire}


def _first_difference(here: list[str], given: Any) -> tuple[Any, Any]:
    """Give the first entries that differ, or twice None."""
    if not isinstance(given, list):
        return f"{len(here)} of these", given
    pairs = itertools.zip_longest(here, given, fillvalue="not there")
    return next(((one, other) for one, other in pairs if one != other), (None, None))


def _trimmed(values: Tensor) -> tuple[int, Tensor]:
    """Leave out the zeros at both ends: of a fusion buffer a rank codes its own part only."""
    there = (values != 0).to(torch.uint8)
    first, behind = int(there.argmax()), values.numel() - int(there.flip(0).argmax())
    return first, values[first:behind].clone()
