"""Which modules work on slices of the sequence, and which ones gather it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.embeddings import Width
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.actions.whole_modules import PartialGradient, Region
from smdp.torch.tensor_parallelism.adapters import Adapters
from smdp.torch.tensor_parallelism.layers.divided import divide
from smdp.torch.tensor_parallelism.layers.partial_gradient import sum_gradients
from smdp.torch.tensor_parallelism.layers.sequence import SequenceRegion, SequenceSlices, StackLayer
from smdp.torch.tensor_parallelism.plan import TensorParallelPlan
from smdp.torch.tensor_parallelism.tensor_axis import TensorAxis


@dataclass
class SequencePlan:
    """What sequence parallelism does to the modules of a model, by their names.

    Attributes:
        layers: The layers of each stack, in order.
        regions: Modules that gather the sequence.
        columns: Layers divided by outputs, and whether they gather the sequence themselves.
        rows: Layers divided by inputs, which scatter the sequence.
        whole: Modules that stay whole and work on slices, such as norms.
    """

    layers: list[list[str]] = field(default_factory=list)
    regions: list[str] = field(default_factory=list)
    columns: dict[str, bool] = field(default_factory=dict)
    rows: list[str] = field(default_factory=list)
    whole: list[str] = field(default_factory=list)

    def apply(self, model: nn.Module, axis: TensorAxis) -> None:
        """Changes the modules of a model whose layers have been divided."""
        slices: dict[str, SequenceSlices] = {}
        for stack in self.layers:
            sequence = SequenceSlices()
            for name in stack:
                layer = model.get_submodule(name)
                slices[name] = sequence
                sequence.add(layer)
                ends = {"is_first": name == stack[0], "is_last": name == stack[-1]}
                divide(layer, StackLayer, axis, sequence=sequence, **ends)
        stacked = [name for stack in self.layers for name in stack]

        def of(name: str) -> SequenceSlices:
            return slices[_layer_of(name, stacked)]

        for name in self.regions:
            divide(model.get_submodule(name), SequenceRegion, axis, sequence=of(name))
        for name, gathers in self.columns.items():
            column: Any = model.get_submodule(name)
            column.sequence, column.gathers_input = of(name), gathers
        for name in self.rows:
            row: Any = model.get_submodule(name)
            row.sequence = of(name)
            if row.bias is not None:
                sum_gradients(row, axis, ["bias"], of(name))
        for name in self.whole:
            sum_gradients(model.get_submodule(name), axis, None, of(name))


def sequence_plan_of(model: nn.Module, plan: TensorParallelPlan) -> SequencePlan:
    """Returns the plan for a model that has not been divided yet.

    Raises:
        ValueError: The model has no stack of layers, or the code of a layer does not work on slices.
    """
    if Adapters(model):
        raise ValueError(
            "[smdp] sequence_parallel: a model with LoRA adapters cannot work on slices of the sequence. Use"
            " sequence_parallel=False."
        )
    found = SequencePlan()
    for name, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or not len(module):
            continue
        names = [f"{name}.{child}" for child, _ in module.named_children()]
        is_inner = any(name.startswith(layer + ".") for stack in found.layers for layer in stack)
        if not is_inner and all(_has_rows(each, plan) for each in names):
            found.layers.append(names)
    if not found.layers:
        raise ValueError(
            f"[smdp] sequence_parallel: {type(model).__name__} has no ModuleList of divided"
            " layers. Use sequence_parallel=False."
        )
    for stack in found.layers:
        for layer in stack:
            _add_layer(found, model, layer, plan)
    return found


def _add_layer(found: SequencePlan, model: nn.Module, layer: str, plan: TensorParallelPlan) -> None:
    inside = {name: action for name, action in plan.actions.items() if name.startswith(layer + ".")}
    columns = {name: action for name, action in inside.items() if isinstance(action, Columns)}
    regions = {
        parent
        for parent in (name.rpartition(".")[0] for name in columns)
        if isinstance(inside.get(parent), Region)
    }
    found.regions += sorted(regions)
    for name, action in columns.items():
        gathers = name.rpartition(".")[0] not in regions
        if gathers and action.blocks is not None and any(each.units < each.length for each in action.blocks):
            _refuse(name, "has heads, and the module around it does not call only divided layers")
        if action.gathers:
            _refuse(name, "gathers its outputs")
        found.columns[name] = gathers
    found.rows += [name for name, action in inside.items() if isinstance(action, Rows)]
    for child, module in model.get_submodule(layer).named_modules(prefix=layer):
        if child in columns or child in found.rows or next(module.parameters(recurse=False), None) is None:
            continue
        is_in_region = any(child == region or child.startswith(region + ".") for region in regions)
        if is_in_region and not isinstance(inside.get(child), (PartialGradient, Width)):
            _refuse(child, "has parameters and works on the whole sequence")
        if not is_in_region and "norm" not in type(module).__name__.lower():
            _refuse(child, "has parameters and is not a norm")
        if not is_in_region:
            found.whole.append(child)


def _refuse(name: str, why: str) -> None:
    raise ValueError(
        f"[smdp] sequence_parallel: module {name!r} {why}. Use sequence_parallel=False for this model."
    )


def _has_rows(layer: str, plan: TensorParallelPlan) -> bool:
    return any(
        isinstance(action, Rows) for name, action in plan.actions.items() if name.startswith(layer + ".")
    )


def _layer_of(name: str, layers: list[str]) -> str:
    return next(layer for layer in layers if name == layer or name.startswith(layer + "."))
