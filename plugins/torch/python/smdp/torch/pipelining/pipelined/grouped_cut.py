"""Cuts of models whose blocks are recomputed in groups, which keep only what their first block gets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from smdp.partition import Partition, Trace
from smdp.partition.steady import Cut, Cutter

_TRIES = 4


class GroupedCut:
    """Cuts with the bytes that groups of blocks keep. Which blocks form groups depends on the cut itself.

    Args:
        cut: Cuts a trace whose blocks keep what they get one by one.
        joined: For each unit, the bytes that it gets from the unit before, without other code in between.
        rows: The names of the units in each list of blocks.
        size: Most blocks in a group. None: any number.
    """

    def __init__(
        self, cut: Cutter, joined: Sequence[int], rows: Sequence[Sequence[str]], size: int | None
    ) -> None:
        self._cut = cut
        self._joined = tuple(joined)
        self._row_of = {name: place for place, row in enumerate(rows) for name in row}
        self._size = math.inf if size is None else size

    def __call__(self, traced: Trace) -> Partition:
        """Returns the best cut of a trace.

        Raises:
            ValueError: No cut fits.
        """
        single: Mapping[int, int] = dict.fromkeys(range(len(traced.units)), 0)
        first: Partition | None = None
        try:
            found = first = self._cut(traced)
        except ValueError:  # groups need less
            found = self._cut(self._kept(traced, single))
        try:
            for _ in range(_TRIES):
                again = self._cut(self._kept(traced, _stages(found)))
                if _stages(again) == _stages(found):
                    return again
                found = again
            return self._cut(Cut.of(found).pinned(self._kept(traced, _stages(found))))
        except ValueError:
            # A cut that moves away from the groups which it was made for may exceed the cap.
            if first is None:
                raise
            return first

    def _kept(self, traced: Trace, stage_of: Mapping[int, int]) -> Trace:
        """Returns the trace with the bytes that units keep in the stages of a cut."""
        units = []
        members, before = 0, None
        for place, unit in enumerate(traced.units):
            row = self._row_of.get(unit.name)
            here = None if row is None else (row, stage_of[place])
            joins = here is not None and here == before and self._joined[place] and members < self._size
            members, before = members + 1 if joins else 1, here
            saved = self._joined[place] if joins else 0
            units.append(replace(unit, activation_bytes=max(unit.activation_bytes - saved, 0)))
        return replace(traced, units=tuple(units))


def _stages(partition: Partition) -> dict[int, int]:
    return {unit: stage for stage, part in enumerate(partition.stages) for unit in part.units}
