"""Stages that the user wants for modules, by name."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Mapping, Sequence

from smdp._shown import counted
from smdp.partition import Trace, Unit


def pinned(traced: Trace, pins: Mapping[str, int], stages: int) -> Trace:
    """Give a trace whose units lie where their modules, or the modules around them, shall be.

    Args:
        traced: Of the model.
        pins: Virtual stage of modules, by name; the innermost counts.
        stages: How many virtual stages there are.

    Raises:
        ValueError: There is no such stage or module, values would flow to an earlier stage, or a stage would
            have no unit.
    """
    names = {unit.name.partition("#")[0] for unit in traced.units}
    modules = {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}
    for name, stage in pins.items():
        if not isinstance(stage, int) or not 0 <= stage < stages:
            raise ValueError(
                f"[smdp] pins puts {name!r} on stage {stage!r}; allowed: stages from 0 to {stages - 1}"
            )
        if name not in modules:
            near = difflib.get_close_matches(name, modules, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"[smdp] pins names {name!r}, which is no module that lies on a stage{hint} Allowed: "
                + ", ".join(sorted(names))
            )
    found: list[Unit] = []
    last: Unit | None = None
    for unit in traced.units:
        parts = unit.name.partition("#")[0].split(".")
        prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        pin = next((pins[prefix] for prefix in prefixes if prefix in pins), None)
        if pin is not None and last is not None and pin < (last.stage or 0):
            raise ValueError(
                f"[smdp] pins puts {unit.name!r} on stage {pin}, but {last.name!r}, which runs before it,"
                f" on stage {last.stage}; values only flow to later stages. A module that is called twice, or"
                " shares its weight, may lie on two stages: pin its neighbours instead."
            )
        unit = dataclasses.replace(unit, stage=pin)
        last = last if pin is None else unit
        found.append(unit)
    _check_room(traced, found, stages)
    return dataclasses.replace(traced, units=tuple(found))


def _check_room(traced: Trace, units: Sequence[Unit], stages: int) -> None:
    """Refuse pins between which there are fewer units than stages."""
    fixed = [(place, unit.stage) for place, unit in enumerate(units) if unit.stage is not None]
    for (begin, first), (end, last) in itertools.pairwise([(-1, -1), *fixed, (len(units), stages)]):
        if last - first <= end - begin:
            continue
        left, right = units[max(begin, 0)].name, units[min(end, len(units) - 1)].name
        name, where = (left, f"after {left!r}") if begin >= 0 else (right, f"before {right!r}")
        where = f"between {left!r} and {right!r}" if begin >= 0 and end < len(units) else where
        is_tied = any(name in group.units for group in traced.tied)
        hint = (
            " Modules that share a weight may lie on two stages: its gradients are added." if is_tied else ""
        )
        raise ValueError(
            f"[smdp] pins assigns {name!r} to stage {first if begin >= 0 else last}, which leaves"
            f" {counted(end - begin - 1, 'module')} for {counted(last - first - 1, 'stage')} {where}; every"
            f" stage needs at least one module. Pin {name!r} to another stage, or leave it out of pins.{hint}"
        )
