"""Assignment of modules to stages by the user."""

from __future__ import annotations

import dataclasses
import difflib
import itertools
from collections.abc import Mapping, Sequence

from smdp._shown import counted
from smdp.partition import Trace, Unit


def pinned(traced: Trace, pins: Mapping[str, int], stages: int) -> Trace:
    """Returns a trace whose units have the stages to which they, or modules around them, are pinned.

    Args:
        traced: The trace of the model.
        pins: Maps module names to virtual stages; the innermost module counts.
        stages: Number of virtual stages.

    Raises:
        ValueError: A stage or module does not exist, values would flow to an earlier stage, or a stage would
            have no unit.
    """
    names = {unit.name.partition("#")[0] for unit in traced.units}
    modules = {name.rsplit(".", depth)[0] for name in names for depth in range(name.count(".") + 1)}
    for name, stage in pins.items():
        if not isinstance(stage, int) or not 0 <= stage < stages:
            raise ValueError(
                f"[smdp] pins assigns {name!r} to stage {stage!r}; stages are numbered 0 to {stages - 1}"
            )
        if name not in modules:
            near = difflib.get_close_matches(name, modules, 1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise ValueError(
                f"[smdp] pins contains {name!r}, which is not a module that is placed on a stage{hint}"
                " Available modules: " + ", ".join(sorted(names))
            )
    found: list[Unit] = []
    last: Unit | None = None
    for unit in traced.units:
        parts = unit.name.partition("#")[0].split(".")
        prefixes = [".".join(parts[:length]) for length in range(len(parts), 0, -1)]
        pin = next((pins[prefix] for prefix in prefixes if prefix in pins), None)
        if pin is not None and last is not None and pin < (last.stage or 0):
            raise ValueError(
                f"[smdp] pins assigns {unit.name!r} to stage {pin}, but {last.name!r}, which runs before it,"
                f" to stage {last.stage}; values can flow only to later stages. A module that is called"
                " twice, or shares its weight, may be on two stages: pin its neighbors instead."
            )
        unit = dataclasses.replace(unit, stage=pin)
        last = last if pin is None else unit
        found.append(unit)
    _check_room(traced, found, stages)
    return dataclasses.replace(traced, units=tuple(found))


def _check_room(traced: Trace, units: Sequence[Unit], stages: int) -> None:
    """Raises if there are fewer units than stages between two pins."""
    fixed = [(place, unit.stage) for place, unit in enumerate(units) if unit.stage is not None]
    for (begin, first), (end, last) in itertools.pairwise([(-1, -1), *fixed, (len(units), stages)]):
        if last - first <= end - begin:
            continue
        left, right = units[max(begin, 0)].name, units[min(end, len(units) - 1)].name
        name, where = (left, f"after {left!r}") if begin >= 0 else (right, f"before {right!r}")
        where = f"between {left!r} and {right!r}" if begin >= 0 and end < len(units) else where
        is_tied = any(name in group.units for group in traced.tied)
        hint = (
            " Modules that share a weight may be on two stages: its gradients are added." if is_tied else ""
        )
        raise ValueError(
            f"[smdp] pins assigns {name!r} to stage {first if begin >= 0 else last}, which leaves"
            f" {counted(end - begin - 1, 'module')} for {counted(last - first - 1, 'stage')} {where}; every"
            f" stage needs at least one module. Pin {name!r} to another stage, or leave it out of pins.{hint}"
        )
