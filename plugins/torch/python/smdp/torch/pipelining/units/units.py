"""Finds the units of a model: the modules that are never cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import nn

from smdp._shown import counted

# These have no forward, so a module around them calls their children.
_HOLDERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def find_units(
    model: nn.Module, least: int = 1, must_be_cut: Callable[[nn.Module], bool] | None = None
) -> tuple[str, ...]:
    """Returns the names of the modules that are never cut, in module order.

    The model itself is split into its parts, and so is each module that is or contains a list (`ModuleList`
    or `Sequential`) of two or more blocks with parameters. A block stays whole and is a unit, unless it
    contains a list of blocks itself: two or more blocks of one class, each with modules two levels deep. This
    applies to a stage of Swin, but not to T5's layers in a block or the experts of a mixture. Modules next to
    the lists are also units: embeddings, the last norm, the head. Modules without parameters are not units,
    because every rank runs them.

    If this yields fewer than `least` units, the largest unit that has parts is split until there are enough.

    Args:
        model: The model whose forward calls these modules.
        least: Minimum number of units, which is the number of stages.
        must_be_cut: Returns whether a module is split in any case, if it has parts.

    Returns:
        Dotted names; a module with several names has its first one. "" is the model itself, if it has
        parameters and no parts.

    Raises:
        ValueError: There are fewer than `least` units, or no parameters.
    """
    if not isinstance(least, int) or least < 1:
        raise ValueError(f"[smdp] stages must be an integer of at least 1, not {least!r}")
    if not _has_parameters(model):
        raise ValueError(f"[smdp] {type(model).__name__} has no parameters, so there is nothing to split")
    # torch lists a shared module once, under its first name.
    names = {id(module): name for name, module in model.named_modules()}
    units = _distinct(unit for unit, _ in _units(model, is_root=True))
    while cut := next((u for u in units if must_be_cut and must_be_cut(u) and _can_expand(u)), None):
        units = _with_parts_of(cut, units)
    while len(units) < least:
        largest = max((unit for unit in units if _can_expand(unit)), key=_bytes, default=None)
        if largest is None:
            found = ", ".join(names[id(unit)] or type(model).__name__ for unit in units)
            raise ValueError(
                f"[smdp] {type(model).__name__} has {counted(len(units), 'module')} that can be on a stage "
                f"({found}), fewer than the {counted(least, 'stage')} requested; use stages={len(units)} or "
                "fewer, or put its layers into separate modules in an nn.ModuleList"
            )
        units = _with_parts_of(largest, units)
    return tuple(sorted((names[id(unit)] for unit in units), key=list(names.values()).index))


def find_rows(model: nn.Module) -> tuple[tuple[str, ...], ...]:
    """Returns the names of the blocks in each list of a model, in module order.

    These are the units that find_units() finds in a `ModuleList` or `Sequential` of two or more blocks with
    parameters. In a `Sequential`, the modules without parameters are also returned.
    """
    names = {id(module): name for name, module in model.named_modules()}
    rows: dict[int, tuple[nn.Module, list[nn.Module]]] = {}
    for unit, row in _units(model, is_root=True):
        if row is not None:
            rows.setdefault(id(row), (row, []))[1].append(unit)
    found = []
    for row, units in rows.values():
        known = {id(unit) for unit in units}
        blocks = _distinct(
            child
            for child in row.children()
            if id(child) in known or (isinstance(row, nn.Sequential) and not _has_parameters(child))
        )
        found.append(tuple(names[id(block)] for block in blocks or units))
    return tuple(found)


def glue_parameters(model: nn.Module, units: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the parameters that belong to no unit, because their modules were split.

    Args:
        model: The model of the units.
        units: The names returned by find_units().

    Returns:
        Names in the order of `named_parameters()`, without tied ones that a unit has under another name.
    """
    in_units = {id(parameter) for name in units for parameter in model.get_submodule(name).parameters()}
    return tuple(name for name, parameter in model.named_parameters() if id(parameter) not in in_units)


def _units(
    module: nn.Module, *, row: nn.Module | None = None, is_root: bool = False
) -> Iterator[tuple[nn.Module, nn.Module | None]]:
    """Yields units, each with the innermost list of blocks that it is in."""
    if not _has_parameters(module):
        return
    parts = list(_children(module))
    if getattr(module, "is_whole_unit", False):
        yield module, row
        return
    expand = is_root or isinstance(module, _HOLDERS)
    if not expand and row is not None:
        expand = any(_is_list_of_deep_blocks(each) for each in module.modules())
    elif not expand:
        expand = _is_list(module) or any(_is_list_of_composites(each) for each in module.modules())
    if not expand or not parts:
        if not isinstance(module, _HOLDERS):
            yield module, row
        return
    for part in parts:
        # nn.Sequential(features, nn.Flatten(), head): features is a row of layers and not a block.
        is_row = is_root and isinstance(part, nn.Sequential) and (_is_list(part) or _has_composites(part))
        yield from _units(part, row=module if _is_list(module) and not is_row else row)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    for part in _children(module):
        if isinstance(part, _HOLDERS):
            yield from _parts(part)
        else:
            yield part


def _with_parts_of(unit: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
    place = next(index for index, each in enumerate(units) if each is unit)
    return _distinct([*units[:place], *_parts(unit), *units[place + 1 :]])


def _can_expand(module: nn.Module) -> bool:
    if getattr(module, "is_whole_unit", False):
        return False
    # torch's own modules other than containers use their children's parameters without calling them.
    is_own = type(module).__module__.startswith("torch.nn.modules.") and not isinstance(module, nn.Sequential)
    return not is_own and next(_parts(module), None) is not None


def _children(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in module.children() if _has_parameters(child))


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _is_composite(module: nn.Module) -> bool:
    return next(_children(module), None) is not None


def _has_composites(module: nn.Module) -> bool:
    return any(map(_is_composite, _children(module)))


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, (nn.ModuleList, nn.Sequential)) and len(list(_children(module))) >= 2


def _is_list_of_composites(module: nn.Module) -> bool:
    return _is_list(module) and sum(map(_is_composite, _children(module))) >= 2


def _is_list_of_deep_blocks(module: nn.Module) -> bool:
    blocks = list(_children(module))
    return (
        _is_list(module) and len({type(block) for block in blocks}) == 1 and all(map(_has_composites, blocks))
    )


def _distinct(modules: Iterable[nn.Module]) -> list[nn.Module]:
    return list({id(module): module for module in modules}.values())


def _bytes(module: nn.Module) -> int:
    return sum(parameter.nbytes for parameter in module.parameters())
