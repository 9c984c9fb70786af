"""Guesses how the linear layers of a module could be divided. A trial decides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from smdp.torch.tensor_parallelism.actions.action import Action
from smdp.torch.tensor_parallelism.actions.attributes import Attributes
from smdp.torch.tensor_parallelism.actions.blocks import Block
from smdp.torch.tensor_parallelism.actions.linears import Columns, Rows
from smdp.torch.tensor_parallelism.actions.whole_modules import Region
from smdp.torch.tensor_parallelism.families.divisions import per_rank
from smdp.torch.tensor_parallelism.layers.linear import inputs_of, outputs_of

# Attributes of attention modules whose names do not say "head".
_HEADS = {"h", "nh"}
_HEAD_WIDTHS = {"d_k", "dh"}
# Code of torch that reads weights of children without calling these, and the values that switch it off.
_SHORTCUTS = {"activation_relu_or_gelu": 0}


@dataclass(frozen=True)
class Guess:
    """A row-parallel layer, the column-parallel layers before it, and attributes to adjust.

    Attributes:
        columns: Actions by the names of layers.
        row: The name of the last layer.
        last: Its action.
        attributes: New values of attributes, by the names of modules and of attributes.
    """

    columns: dict[str, Columns]
    row: str
    last: Rows
    attributes: dict[str, dict[str, Any]]

    @property
    def names(self) -> set[str]:
        """The names of the layers."""
        return {*self.columns, self.row}

    def problem(self, linears: Mapping[str, nn.Module], size: int) -> str | None:
        """Returns why the layers cannot be divided over `size` ranks, or None."""
        layers: dict[str, Action] = {**self.columns, self.row: self.last}
        for name, action in layers.items():
            found = action.problem(linears[name], size)
            if found is not None:
                return f"{name} cannot be divided over {size} ranks: {found}"
        return None

    def actions(self, present: Mapping[str, Action]) -> dict[str, Action]:
        """Returns all actions, where some layers of the module may be divided already."""
        found: dict[str, Action] = {**present, **self.columns, self.row: self.last}
        region = present.get("")
        own = dict(region.attributes) if isinstance(region, Region) else {}
        for name, values in self.attributes.items():
            if name:
                found[name] = Attributes(values)
            else:
                own |= values
        # The whole module is a region, and a child with adjusted attributes is not, because its columns and
        # the row may be in different children.
        found[""] = Region(own)
        return found


def guesses(module: nn.Module, linears: Mapping[str, nn.Module], size: int) -> Iterator[Guess]:
    """Yields possible divisions of a module, the likely ones first.

    Args:
        module: The module.
        linears: Its linear layers that are whole, by name.
        size: The number of ranks.
    """
    # The last layer is usually registered last.
    for row in reversed(tuple(linears)):
        inner = inputs_of(linears[row])
        others = {name: layer for name, layer in linears.items() if name != row}
        for heads in (None, *_heads(module, inner)):
            for columns in _columns(module, row, others, inner, heads):
                last = Rows(None if heads is None else (Block(inner, heads),))
                widths = {inner, *(outputs_of(linears[name]) for name in columns)}
                for attributes in _attributes(module, columns, widths, size, has_heads=heads is not None):
                    yield Guess(columns, row, last, attributes)


def _columns(
    module: nn.Module, row: str, others: Mapping[str, nn.Module], inner: int, heads: int | None
) -> Iterator[dict[str, Columns]]:
    """Yields layers whose outputs the row could use, and how they are divided."""
    block = Block(inner, inner if heads is None else heads)
    same = [name for name, layer in others.items() if outputs_of(layer) == inner]
    if heads is not None:
        width = inner // heads
        fewer = {
            name: Columns((Block(outputs_of(layer), outputs_of(layer) // width, may_repeat=True),))
            for name, layer in others.items()
            if outputs_of(layer) <= inner and outputs_of(layer) % width == 0
        }
        if same and len(fewer) > len(same):
            yield fewer
    sets = [same]
    # A chain of layers of the same width: the one before the row is the one that feeds it.
    if len(same) > 1:
        sets += [same[-1:], *([name] for name in same[:-1])]
    for names in sets:
        if names:
            yield {name: Columns(None if heads is None else (block,)) for name in names}
    for name, layer in others.items():
        outputs = outputs_of(layer)
        parts = outputs // inner
        if parts in (2, 3) and outputs % inner == 0:
            # First one after another, such as query | key | value; then interleaved, such as head by head.
            yield {name: Columns((block,) * parts)}
            yield {name: Columns((Block(outputs, block.units),))}
        if heads is not None and inner < outputs < 3 * inner:
            rest, width = outputs - inner, inner // heads
            if rest % (2 * width) == 0:
                keys = Block(rest // 2, rest // 2 // width, may_repeat=True)
                yield {name: Columns((block, keys, keys))}


def _heads(module: nn.Module, inner: int) -> list[int]:
    """Returns possible numbers of heads of a width, from the attributes of a module and its children."""
    found: dict[int, None] = {}
    for child in _near(module).values():
        for name, value in _integers(child).items():
            if _counts_heads(name) and inner % value == 0 and value < inner:
                found[value] = None
            is_width = "head" in name.lower() or name in _HEAD_WIDTHS
            if is_width and not _counts_heads(name) and inner % value == 0 and value > 1:
                found[inner // value] = None
    # The number of queries' heads is at least that of the keys'.
    return sorted(found, reverse=True)


def _attributes(
    module: nn.Module, columns: Mapping[str, Columns], widths: set[int], size: int, *, has_heads: bool
) -> Iterator[dict[str, dict[str, Any]]]:
    """Yields attributes to adjust: none, counts of heads, and widths, alone and together."""
    near = _near(module)
    always = {
        name: {key: value for key, value in _SHORTCUTS.items() if hasattr(child, key)}
        for name, child in near.items()
    }
    always = {name: values for name, values in always.items() if values}
    parents = [name for name in near if name == "" or any(each.startswith(f"{name}.") for each in columns)]
    counts: list[tuple[str, str, int]] = []
    sizes: list[tuple[str, str, int]] = []
    for parent in parents:
        for name, value in _integers(near[parent]).items():
            if has_heads and _counts_heads(name):
                counts.append((parent, name, per_rank(value, size)))
            elif value in widths and value % size == 0 and not _counts_heads(name):
                sizes.append((parent, name, value // size))
    chosen: dict[tuple[tuple[str, str, int], ...], None] = {(): None, tuple(counts): None}
    sizes = sizes[:4]
    for number in (len(sizes), *range(1, len(sizes))):
        for some in itertools.combinations(sizes, number):
            chosen.setdefault((*counts, *some))
    for each in chosen:
        found = {name: dict(values) for name, values in always.items()}
        for parent, name, value in each:
            found.setdefault(parent, {})[name] = value
        yield found


def _near(module: nn.Module) -> dict[str, nn.Module]:
    """Returns a module and its children, by name."""
    return {"": module, **dict(module.named_children())}


def _integers(module: nn.Module) -> dict[str, int]:
    return {name: value for name, value in vars(module).items() if type(value) is int and value > 0}


def _counts_heads(name: str) -> bool:
    lower = name.lower()
    is_size = any(word in lower for word in ("dim", "size", "width", "d_head"))
    return name in _HEADS or ("head" in lower and not is_size)
