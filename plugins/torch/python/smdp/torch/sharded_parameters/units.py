"""The modules whose parameters are gathered together."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn
from torch.nn import Parameter

from smdp.torch.forward_waits.forward_waits import default_units

_COLLECTIONS = (nn.ModuleList, nn.ModuleDict)


def chosen_units(model: nn.Module, units: Iterable[nn.Module] | None) -> list[nn.Module]:
    """Returns the units of a model in the order of its modules. The rest of the model is one more unit.

    A unit that shares a parameter with other modules is not one, because the rest gathers that parameter.

    Args:
        model: The model.
        units: Modules of the model. Default: the elements of its outermost ModuleLists, ModuleDicts and
            Sequentials.

    Raises:
        ValueError: A unit is not a module of the model, cannot be called, or contains another unit.
    """
    if units is None:
        chosen = default_units(model)
    else:
        chosen = list(units)
        _check(model, chosen)
    uses: dict[Parameter, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                uses[parameter] = uses.get(parameter, 0) + 1
    kept = []
    for unit in dict.fromkeys(chosen):
        own: dict[Parameter, int] = {}
        for module in unit.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    own[parameter] = own.get(parameter, 0) + 1
        if own and all(uses[parameter] == count for parameter, count in own.items()):
            kept.append(unit)
    return kept


def _check(model: nn.Module, units: list[nn.Module]) -> None:
    names = {id(module): name for name, module in model.named_modules()}
    for unit in units:
        if id(unit) not in names or unit is model:
            raise ValueError(
                f"[smdp] ShardedDataParallel: units contains a {type(unit).__name__} that is not a module"
                " inside the model. Pass modules of the model, such as its transformer blocks."
            )
        if isinstance(unit, _COLLECTIONS):
            raise ValueError(
                f"[smdp] ShardedDataParallel: unit {names[id(unit)]!r} is a {type(unit).__name__}, which is"
                " never called. Pass its elements."
            )
        inside = {id(module) for module in unit.modules()} - {id(unit)}
        for other in units:
            if id(other) in inside:
                raise ValueError(
                    f"[smdp] ShardedDataParallel: unit {names[id(unit)]!r} contains unit"
                    f" {names[id(other)]!r}. Pass only one of them."
                )
