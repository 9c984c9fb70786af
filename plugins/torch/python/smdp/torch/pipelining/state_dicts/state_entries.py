"""Entries of the state dict of a model in stages: the ranks that hold an entry, and the one that saves it."""

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
        value: A tensor, or the extra state of a module. If no stage of this rank holds it, only a tensor's
            shape and dtype are meaningful.
        stages: The virtual stages that hold it; all for an entry outside units that is not a parameter.
        saver: The stage whose rank saves it: the first one, or the one that writes to a buffer between units.
        first_name: The first name of the same tensor; differs from the entry's name only for tied weights.
    """

    value: Any
    stages: frozenset[int]
    saver: int
    first_name: str


def entries_of(model: nn.Module, split: Split) -> dict[str, Entry]:
    """Returns all entries of the whole model's state dict by name, in its order."""
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
        # Only tensors are compared by identity, because equal small numbers and strings are the same object.
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
    """Returns this rank's part of a state dict, the missing names, and those unknown to the model.

    Raises:
        ValueError: A shape differs; or, if `strict`, there are missing or unknown names.
    """
    mine = {name: entry for name, entry in entries.items() if not entry.stages.isdisjoint(own)}
    missing = [name for name in mine if name not in given]
    unexpected = [name for name in given if name not in entries]
    if strict and missing:
        raise ValueError(
            f"[smdp] the state dict lacks {names_of(missing)}, which stages {sorted(own)} of the model hold;"
            f" expected the {len(mine)} entries of this rank, or the state dict of the whole model"
        )
    if strict and unexpected:
        raise ValueError(
            f"[smdp] the state dict contains {names_of(unexpected)}, which the model does not have"
            f"{nearest(unexpected[0], entries)}; load with strict=False to skip them"
        )
    for name, entry in mine.items():
        if name in given and isinstance(entry.value, Tensor):
            check_shape(name, given[name], entry.value)
    return {name: given[name] for name in mine if name in given}, missing, unexpected


def check_shape(name: str, given: Any, own: Tensor) -> None:
    """Checks the shape of an entry against the tensor into which it is loaded.

    Raises:
        ValueError: The shape differs, or the entry is not a tensor.
    """
    if not isinstance(given, Tensor) or given.shape != own.shape:
        text = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise ValueError(
            f"[smdp] {name!r} is {text} in the state dict, but {list(own.shape)} in the model; both must have"
            " the same shape"
        )


def names_of(names: Sequence[str]) -> str:
    """Returns names as shown in errors: the first few, and the number of others."""
    shown = ", ".join(repr(name) for name in names[:_MOST_NAMES])
    return shown if len(names) <= _MOST_NAMES else f"{shown} and {len(names) - _MOST_NAMES} more"


def nearest(name: str, known: Collection[str]) -> str:
    """Returns a hint at the most similar known name, or an empty string."""
    found = difflib.get_close_matches(name, known, n=1)
    return f" (the most similar name is {found[0]!r})" if found else ""
