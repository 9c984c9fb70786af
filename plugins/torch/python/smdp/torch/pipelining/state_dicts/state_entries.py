"""The state dict of a model in stages: which rank holds an entry, and which one saves it."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from smdp.torch.pipelining.tensors.values import writer_of
from smdp.torch.pipelining.units.splitting import Split

_MOST_NAMES = 8


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the whole model's state dict.

    Attributes:
        value: A tensor, or the extra state of a module. Where no stage of this rank holds it, only a tensor's
            shape and dtype mean something.
        stages: The virtual stages that hold it; all of them for what belongs to no unit and is no parameter.
        saver: The stage whose rank saves it: the first, or that which writes to a buffer between units.
        first_name: Under which name the same tensor comes first; another one only for tied weights.
    """

    value: Any
    stages: frozenset[int]
    saver: int
    first_name: str


def entries_of(model: nn.Module, split: Split) -> dict[str, Entry]:
    """Give all entries of the whole model's state dict by name, in its order."""
    everywhere = frozenset(range(len(split.partition.stages)))
    modules = dict(model.named_modules(remove_duplicate=False))
    in_units = {
        id(buffer): frozenset(calls)
        for unit, calls in split.stages.items()
        for buffer in modules[unit].buffers()
    }
    first_names: dict[int, str] = {}
    found = {}
    for name, value in model.state_dict(keep_vars=True).items():
        # Small numbers and strings are one object wherever they stand.
        first_name = first_names.setdefault(id(value), name) if isinstance(value, Tensor) else name
        if first_name in split.weights:
            stages = split.weights[first_name]
        elif id(value) in in_units:
            stages = in_units[id(value)]
        else:
            unit = next((unit for unit in split.stages if name.startswith(unit + ".")), None)
            stages = everywhere if unit is None else frozenset(split.stages[unit])
        writer = writer_of(value) if isinstance(value, Tensor) else None
        saver = writer if writer in stages else min(stages)
        found[name] = Entry(value, stages, saver, first_name)
    return found


def select(
    given: Mapping[str, Any], entries: Mapping[str, Entry], own: Collection[int], *, strict: bool
) -> tuple[dict[str, Any], list[str], list[str]]:
    """Give what of a state dict is this rank's, names that it lacks, and names that the model lacks.

    Raises:
        ValueError: A shape differs; or, if `strict`, there are such names.
    """
    mine = {name: entry for name, entry in entries.items() if not entry.stages.isdisjoint(own)}
    missing = [name for name in mine if name not in given]
    unexpected = [name for name in given if name not in entries]
    if strict and missing:
        raise ValueError(
            f"[smdp] the state dict lacks {names_of(missing)}, which stages {sorted(own)} of the model hold;"
            f" allowed: one with the {len(mine)} entries of this rank, or the whole model's"
        )
    if strict and unexpected:
        raise ValueError(
            f"[smdp] the state dict holds {names_of(unexpected)}, which the model lacks"
            f"{nearest(unexpected[0], entries)}; load with strict=False to leave them out"
        )
    for name, entry in mine.items():
        if name in given and isinstance(entry.value, Tensor):
            check_shape(name, given[name], entry.value)
    return {name: given[name] for name in mine if name in given}, missing, unexpected


def check_shape(name: str, given: Any, own: Tensor) -> None:
    """Compare an entry with what it is loaded into.

    Raises:
        ValueError: It has another shape, or is no tensor.
    """
    if not isinstance(given, Tensor) or given.shape != own.shape:
        text = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(
            f"[smdp] {name!r} is {text} in the state dict and {list(own.shape)} in the model; allowed: the"
            " same shape"
        )


def names_of(names: Sequence[str]) -> str:
    """Give names as errors show them: the first few, and how many there are."""
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def nearest(name: str, known: Collection[str]) -> str:
    """Give a remark on the name that was perhaps meant; nothing if none is like it."""
    found = difflib.get_close_matches(name, known, n=1)
    return f" (the nearest name there is {found[0]!r})" if found else ""
