"""The assignment of a model's modules and parameters to stages."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn import Parameter

from smdp.partition import Partition, Trace
from smdp.torch.mesh.cuts import cut_of, mark_cut
from smdp.torch.pipelining.tensors.values import Weight, mark_weight
from smdp.torch.pipelining.units.unit_call import Unit


@dataclass(frozen=True, slots=True)
class Split:
    """A model that is cut into stages.

    Attributes:
        trace: The units in execution order.
        partition: The stages, with predicted times and bytes.
        stages: For each unit, by name, the virtual stage of each of its calls.
        weights: For each parameter, by its first name and in the model's order, the virtual stages that use
            it.
    """

    trace: Trace
    partition: Partition
    stages: dict[str, tuple[int, ...]]
    weights: dict[str, frozenset[int]]

    def tied(self) -> list[list[int]]:
        """Returns the groups of virtual stages that share a weight."""
        groups = {tuple(sorted(stages)) for stages in self.weights.values()}
        return [list(group) for group in sorted(groups) if len(group) > 1]


def stages_of_units(trace: Trace, partition: Partition) -> dict[str, tuple[int, ...]]:
    """Returns the virtual stage of each call of each unit; the trace names a second call "name#2"."""
    stage_of = {
        trace.units[unit].name: stage for stage, part in enumerate(partition.stages) for unit in part.units
    }
    calls: dict[str, list[tuple[int, int]]] = {}
    for text, stage in stage_of.items():
        name, _, number = text.partition("#")
        calls.setdefault(name, []).append((int(number or 1), stage))
    return {name: tuple(stage for _, stage in sorted(found)) for name, found in calls.items()}


def users_of_weights(
    model: nn.Module, stages: Mapping[str, tuple[int, ...]], uses: Mapping[str, set[int]]
) -> dict[str, frozenset[int]]:
    """Returns the stages that use each parameter.

    Args:
        model: The whole model.
        stages: The stages of its units.
        uses: The stages that use a parameter outside units, by the parameter's first name.
    """
    first_names = {id(parameter): name for name, parameter in model.named_parameters()}
    users: dict[str, set[int]] = {name: set(uses.get(name, ())) for name in first_names.values()}
    modules = dict(model.named_modules(remove_duplicate=False))
    for unit, calls in stages.items():
        for parameter in modules[unit].parameters():
            users[first_names[id(parameter)]].update(calls)
    order = list(stages)
    for name, found in users.items():
        if not found:
            found.add(_nearest(name, order, stages))
    return {name: frozenset(found) for name, found in users.items()}


def _nearest(parameter: str, units: list[str], stages: Mapping[str, tuple[int, ...]]) -> int:
    """Returns the stage of the first unit under the module that holds a parameter, or else the last stage."""
    holder = parameter.rpartition(".")[0]
    for unit in units:
        if not holder or unit.startswith(holder + "."):
            return stages[unit][0]
    return max(max(calls) for calls in stages.values())


def keep_own(
    model: nn.Module, weights: Mapping[str, frozenset[int]], own: set[int], pipe: Callable[[], Any]
) -> None:
    """Replaces the parameters that other ranks hold by meta tensors, and marks all parameters."""
    first_names = {id(parameter): name for name, parameter in model.named_parameters()}
    kept: dict[int, Parameter] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is None:
                continue
            if id(parameter) not in kept:
                first_name = first_names[id(parameter)]
                kept[id(parameter)] = parameter
                if not weights[first_name] & own:
                    kept[id(parameter)] = Parameter(
                        parameter.detach().to("meta"), requires_grad=parameter.requires_grad
                    )
                    if (cut := cut_of(parameter)) is not None:
                        mark_cut(kept[id(parameter)], cut)
                mark_weight(kept[id(parameter)], Weight(first_name, weights[first_name], pipe))
            module._parameters[name] = kept[id(parameter)]


def make_units(model: nn.Module, stages: Mapping[str, tuple[int, ...]]) -> list[Unit]:
    """Replaces the forward of each unit, and returns the units."""
    modules = dict(model.named_modules(remove_duplicate=False))
    return [Unit(name, modules[name], calls) for name, calls in stages.items()]
