"""What compression keeps of gradients for later steps, as tensors for a checkpoint of this rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from smdp import _core
from smdp.torch.gradient_hooks import GradientHooks

_PARTS = 3  # as GradientReducer::kKeptParts


def copy_kept(group: _core.Group, hooks: GradientHooks, options: Mapping[str, Any]) -> dict[str, Any]:
    """Give what is kept, by the parameter's name, and what it belongs to; what is zero is left out."""
    if hooks.deferral is not None:
        hooks.deferral.settle()
    coded: dict[str, dict[int, tuple[int, Tensor]]] = {}
    for index, (name, dtype, count) in enumerate(hooks.registered):
        if dtype is not torch.float32:
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
    velocity = {names[index]: one.clone() for index, one in hooks.velocity.items()}
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
        if given != value:
            raise ValueError(
                f"[smdp] load_residuals(): {name} is {value!r} here and was {given!r} where they come from;"
                " residuals belong to one way to train. Leave them out: training goes on with none."
            )
    _check_parts({name: count for name, _, count in hooks.registered}, kept)
    for index, (name, _, count) in enumerate(hooks.registered):
        for part, (first, values) in kept["coded"].get(name, {}).items():
            whole = torch.zeros(count)
            whole[first : first + values.numel()] = values
            hooks.reducer.set_kept(index, part, whole.data_ptr())
        if name in kept["velocity"]:
            hooks.velocity[index] = kept["velocity"][name].clone()


def _check_form(kept: Any) -> None:
    parts = ("of", "coded", "velocity")
    if not isinstance(kept, Mapping) or not all(isinstance(kept.get(name), Mapping) for name in parts):
        raise ValueError(
            "[smdp] load_residuals() got something else than residuals() gives, which has 'of', 'coded' and"
            " 'velocity'."
        )


def _check_parts(counts: Mapping[str, int], kept: Mapping[str, Any]) -> None:
    ends = [
        (name, first + values.numel())
        for name, parts in kept["coded"].items()
        for first, values in parts.values()
    ]
    for name, end in [*ends, *((name, values.numel()) for name, values in kept["velocity"].items())]:
        if name in counts and end > counts[name]:
            raise ValueError(
                f"[smdp] load_residuals(): they have {end} elements of gradient {name!r}, which has"
                f" {counts[name]} here."
            )


def _owner(group: _core.Group, hooks: GradientHooks, options: Mapping[str, Any]) -> dict[str, Any]:
    elements = sum(count for _, _, count in hooks.registered)
    wire = {name: options[name] for name in ("compression", "topk_ratio", "topk_momentum")}
    parameters = f"{len(hooks.registered)} of {elements} elements"
    return {"rank": group.rank, "hosts": group.hosts, "parameters": parameters, **wire}


def _trimmed(values: Tensor) -> tuple[int, Tensor]:
    """Leave out the zeros at both ends: of a fusion buffer a rank codes its own part only."""
    there = (values != 0).to(torch.uint8)
    first, behind = int(there.argmax()), values.numel() - int(there.flip(0).argmax())
    return first, values[first:behind].clone()
