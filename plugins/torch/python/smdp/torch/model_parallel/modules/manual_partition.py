"""Manual partitions: `smp.partition` and `smp.set_partition`."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from smdp.partition import Trace
from smdp.torch.pipelining.pipelined.split_over_ranks import Placed

_MARK = "_smp_partition"
_contexts = threading.local()


@contextlib.contextmanager
def partition(index: int) -> Iterator[None]:
    """Assigns modules created in this context to a partition. Has no effect if `auto_partition` is on.

    The innermost context counts. Modules created outside of any are assigned to `default_partition`.

    Args:
        index: The partition, from 0 to partitions - 1.

    Raises:
        ValueError: `index` is not an integer of at least 0. If it is too large, cutting the model raises the
            error.
    """
    _check(index)
    outer = getattr(_contexts, "index", None)
    _contexts.index = index
    with _marking() if outer is None else contextlib.nullcontext():
        try:
            yield
        finally:
            _contexts.index = outer


def set_partition(module: nn.Module, index: int) -> None:
    """Assigns a module and all modules in it to a partition. Has no effect if `auto_partition` is on.

    Args:
        module: The module.
        index: The partition, from 0 to partitions - 1.

    Raises:
        ValueError: `module` is not a module, or `index` is not an integer of at least 0.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"[smdp] smp.set_partition got {type(module).__name__}; expected a torch.nn.Module")
    _check(index)
    for each in module.modules():
        object.__setattr__(each, _MARK, index)


class ManualPartition:
    """The assigned partition of each module of a model.

    Args:
        model: The model, marked by partition() and set_partition().
        default: The partition of modules that are not marked.
        partitions: Number of partitions.

    Raises:
        ValueError: A module is assigned to a partition that does not exist.
    """

    def __init__(self, model: nn.Module, default: int, partitions: int) -> None:
        self._of: dict[nn.Module, int] = {}
        self._names: dict[str, int] = {}
        self._default = default
        self._partitions = partitions
        self._walk("", model, default, partitions)

    def is_divided(self, module: nn.Module) -> bool:
        """Returns whether a module's parts that have parameters are on several partitions."""
        holders = [
            each for each in module.modules() if next(each.parameters(recurse=False), None) is not None
        ]
        return len({self._of[each] for each in holders}) > 1

    def assign(self, trace: Trace) -> Placed:
        """Returns the trace with the fewest stages that put every unit on its partition.

        Values flow only to later stages. A new stage therefore begins wherever the next unit is on another
        partition, even if that partition already has a stage: units on partitions 0, 1, 0 are three stages.

        Raises:
            ValueError: A partition has no unit.
        """
        partitions = [self._names[unit.name.partition("#")[0]] for unit in trace.units]
        empty = sorted(set(range(self._partitions)) - set(partitions))
        if empty:
            raise ValueError(
                f"[smdp] auto_partition is off, and no module with parameters is on partition(s) {empty}."
                " Modules that smp.partition and smp.set_partition do not assign are on default_partition ="
                f" {self._default}. Assign modules to each partition, or set auto_partition to true."
            )
        stages: dict[str, int] = {}
        rank_of: list[int] = []
        for unit, partition in zip(trace.units, partitions, strict=True):
            if not rank_of or partition != rank_of[-1]:
                rank_of.append(partition)
            stages[unit.name] = len(rank_of) - 1
        return Placed(assigned(trace, stages), tuple(rank_of))

    def _walk(self, name: str, module: nn.Module, around: int, partitions: int) -> None:
        index = getattr(module, _MARK, around)
        if index >= partitions:
            raise ValueError(
                f"[smdp] module {name!r} was assigned to partition {index} by smp.partition or"
                f" smp.set_partition; with partitions = {partitions}, partitions are numbered 0 to"
                f" {partitions - 1}"
            )
        # A module with several parents is on the partition of the first one.
        if module in self._of:
            index = self._of[module]
        self._of[module] = self._names[name] = index
        for key, child in module._modules.items():
            if child is not None:
                self._walk(f"{name}.{key}" if name else key, child, index, partitions)


def assigned(trace: Trace, stages: Mapping[str, int]) -> Trace:
    """Returns a trace with a stage for every unit.

    Args:
        trace: The trace of the model.
        stages: The stages by names of units.

    Raises:
        ValueError: The names differ from the trace's units, or a unit would be on an earlier stage than its
            predecessor.
    """
    names = [unit.name for unit in trace.units]
    if set(names) != set(stages):
        raise ValueError(
            "[smdp] the partition belongs to another model: it contains"
            f" {sorted(set(stages) - set(names))[:4]}, which this model lacks, and lacks"
            f" {sorted(set(names) - set(stages))[:4]}; use the model that was saved"
        )
    last = names[0]
    for name in names:
        if stages[name] < stages[last]:
            raise ValueError(
                f"[smdp] the partition assigns {name!r} to stage {stages[name]}, but {last!r}, which runs"
                f" before it, to stage {stages[last]}; values can flow only to later stages. The modules may"
                " run in another order than when the partition was made; use the model that was saved"
            )
        last = name
    return dataclasses.replace(
        trace, units=tuple(dataclasses.replace(unit, stage=stages[unit.name]) for unit in trace.units)
    )


def _check(index: Any) -> None:
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ValueError(f"[smdp] partition index {index!r} is not valid; allowed: an integer of at least 0")


@contextlib.contextmanager
def _marking() -> Iterator[None]:
    """Marks each module at creation, because lists of modules may be registered only after the context."""
    plain = nn.Module.__init__

    def init(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        index = getattr(_contexts, "index", None)
        if index is not None:
            object.__setattr__(self, _MARK, index)

    nn.Module.__init__ = init
    try:
        yield
    finally:
        nn.Module.__init__ = plain
