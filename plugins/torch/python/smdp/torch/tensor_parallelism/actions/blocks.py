"""Blocks of inputs or outputs that are divided by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from smdp._shown import counted
from smdp.torch.mesh.slices import even


@dataclass(frozen=True)
class Block:
    """Consecutive inputs or outputs that are divided by themselves, such as all queries.

    Attributes:
        length: The number of inputs or outputs.
        units: The number of parts that are never cut, such as heads.
        may_repeat: Whether a unit may be on several ranks if there are fewer units than ranks. This is right
            for keys and values, which several queries share.
    """

    length: int
    units: int
    may_repeat: bool = False

    def problem(self, size: int) -> str | None:
        """Returns why the block cannot be divided over `size` ranks, or None."""
        if self.length % self.units != 0:
            return f"{self.length} is not a multiple of {self.units}"
        if self.units % size != 0 and not self.repeats(size):
            what = "unit" if self.units == self.length else "head"
            return f"{counted(self.units, what)} cannot be divided evenly"
        return None

    def repeats(self, size: int) -> bool:
        """Returns whether each unit is on several of `size` ranks."""
        return self.may_repeat and self.units < size and size % self.units == 0

    def is_first(self, rank: int, size: int) -> bool:
        """Returns whether a rank is the first one that holds its units."""
        return not self.repeats(size) or rank % (size // self.units) == 0

    def range_of(self, rank: int, size: int) -> tuple[int, int]:
        """Returns the range of a rank within the block."""
        width = self.length // self.units
        if self.repeats(size):
            unit = rank // (size // self.units)
            return unit * width, (unit + 1) * width
        begin, end = even(self.units, rank, size)
        return begin * width, end * width


def ranges_of(blocks: Sequence[Block], rank: int, size: int) -> list[tuple[int, int]]:
    """Returns the ranges of a rank in blocks that lie one after another."""
    found, offset = [], 0
    for block in blocks:
        begin, end = block.range_of(rank, size)
        found.append((offset + begin, offset + end))
        offset += block.length
    return found


def problem_of(
    blocks: Sequence[Block], length: int, size: int, what: str, *, may_repeat: bool = False
) -> str | None:
    """Returns why a layer cannot be divided into blocks over `size` ranks, or None.

    Args:
        blocks: The blocks.
        length: The number of the layer's inputs or outputs.
        size: The number of ranks.
        what: "inputs" or "outputs", for the message.
        may_repeat: Whether several ranks may hold the same unit.
    """
    if sum(block.length for block in blocks) != length:
        return f"it has {length} {what}, and the plan divides {sum(block.length for block in blocks)}"
    for block in blocks:
        problem = block.problem(size)
        if problem is not None:
            return f"its {length} {what}: {problem}"
        if block.repeats(size) and not may_repeat:
            return f"its {length} {what}: {counted(block.units, 'head')} cannot be divided evenly"
    return None


def described(block: Block, size: int) -> str:
    """Returns how a block is divided, for the plan that users print."""
    if block.units == block.length:
        return f"{block.length} / {size}"
    if block.repeats(size):
        return f"{counted(block.units, 'head')} on {size // block.units} ranks each"
    return f"{counted(block.units, 'head')} / {size}"
