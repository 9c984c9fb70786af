"""Partitions chosen by hand: `smp.partition`, `smp.set_partition`."""

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
    """Put the modules that are made inside of it on a partition, unless `auto_partition` is on.

    The innermost context wins. Modules made outside of any lie on `default_partition`.

    Args:
        index: From 0 to partitions - 1.

    Raises:
        ValueError: It is no such index; those from `partitions` on are found when the model is cut.
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
    """Put a module, with all modules in it, on a partition, unless `auto_partition` is on.

    Raises:
        ValueError: It is no module, or no index.
    """
    if not isinstance(module, nn.Module):
        raise ValueError(f"[smdp] smp.set_partition got {type(module).__name__}; allowed: a torch.nn.Module")
    _check(index)
    for each in module.modules():
        object.__setattr__(each, _MARK, index)


class ManualPartition:
    """Where each module of a model shall lie.

    Args:
        model: Marked by partition() and set_partition().
        default: Partition of what is not marked.
        partitions: How many there are.

    Raises:
        ValueError: A module is marked with a partition that there is not.
    """

    def __init__(self, model: nn.Module, default: int, partitions: int) -> None:
        self._of: dict[nn.Module, int] = {}
        self._names: dict[str, int] = {}
        self._default = default
        self._partitions = partitions
        self._walk("", model, default, partitions)

    def is_divided(self, module: nn.Module) -> bool:
        """Tell whether parts of a module with parameters lie on several partitions."""
        holders = [
            each for each in module.modules() if next(each.parameters(recurse=False), None) is not None
        ]
        return len({self._of[each] for each in holders}) > 1

    def assign(self, trace: Trace) -> Placed:
        """Returns the trace with the fewest stages that put every unit on its partition.

        Values flow to later stages only. So a further stage begins wherever the next unit lies on another
        partition, also on one that has a stage already: units on partitions 0, 1, 0 are three stages.

        Raises:
            ValueError: A partition would hold nothing.
        """
        partitions = [self._names[unit.name.partition("#")[0]] for unit in trace.units]
        empty = sorted(set(range(self._partitions)) - set(partitions))
        if empty:
            raise ValueError(
                f"[smdp] auto_partition is off, and no module with parameters is on partition(s) {empty}:"
                " what no smp.partition or smp.set_partition names lies on default_partition ="
                f" {self._default}; put modules on each partition, or switch auto_partition on"
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
                f"[smdp] module {name!r} was put on partition {index} by smp.partition or smp.set_partition;"
                f" allowed: 0 to {partitions - 1}, as partitions = {partitions}"
            )
        # A module with several parents lies where its first one put it.
        if module in self._of:
            index = self._of[module]
        self._of[module] = self._names[name] = index
        for key, child in module._modules.items():
            if child is not None:
                self._walk(f"{name}.{key}" if name else key, child, index, partitions)


def assigned(trace: Trace, stages: Mapping[str, int]) -> Trace:
    """Give a trace with a stage for every unit.

    Args:
        trace: Of the model.
        stages: By names of units.

    Raises:
        ValueError: The units are others, or one would lie before one that runs earlier.
    """
    names = [unit.name for unit in trace.units]
    if set(names) != set(stages):
        raise ValueError(
            "[smdp] the partition is that of another model: it names"
            f" {sorted(set(stages) - set(names))[:4]}, which this one lacks, and lacks"
            f" {sorted(set(names) - set(stages))[:4]}; allowed: the model that was saved"
        )
    last = names[0]
    for name in names:
        if stages[name] < stages[last]:
            raise ValueError(
                f"[smdp] the partition puts {name!r} on stage {stages[name]}, and {last!r}, which runs before"
                f" it, on stage {stages[last]}; values only flow to later stages. Modules may run in another"
                " order than when the partition was made; allowed: the model that was saved"
            )
        last = name
    return dataclasses.replace(
        trace, units=tuple(dataclasses.replace(unit, stage=stages[unit.name]) for unit in trace.units)
    )


def _check(index: Any) -> None:
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise ValueError(f"[smdp] partition index {index!r} is not valid; allowed: an integer from 0")


@contextlib.contextmanager
def _marking() -> Iterator[None]:
    """Mark each module when it is made: lists of modules may be registered only after the context."""
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
