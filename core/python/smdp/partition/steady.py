"""A cut that does not depend on what disturbs a measurement.

Measured times are wrong by some share of themselves. Where that is more than what a cut gains, another run
would cut elsewhere. Then the balanced cut wins: the one by operations and bytes moved, which are the same in
every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from smdp._core import Partition
from smdp.partition.trace import Trace

# By what share of itself the time of a kind of work may differ from what its operations say.
_WORK_SPREAD = 0.2
# What share of a step less memory may cost.
_WORTH_MEMORY = 0.02

Cutter = Callable[[Trace], Partition]


@dataclass(frozen=True, slots=True)
class Cut:
    """What lies where.

    Attributes:
        stages: Of each unit.
        rank_of: Of each stage.
    """

    stages: tuple[int, ...]
    rank_of: tuple[int, ...]

    @classmethod
    def of(cls, partition: Partition) -> Cut:
        """Returns the cut of a partition."""
        stage_of = {unit: stage for stage, part in enumerate(partition.stages) for unit in part.units}
        stages = tuple(stage_of[unit] for unit in sorted(stage_of))
        return cls(stages, tuple(stage.rank for stage in partition.stages))

    def pinned(self, trace: Trace) -> Trace:
        """Returns a trace that can only be cut so."""
        units = tuple(
            replace(unit, stage=stage) for unit, stage in zip(trace.units, self.stages, strict=True)
        )
        return replace(trace, units=units)

    def neighbors(self, trace: Trace) -> Iterator[Cut]:
        """Yields the cuts that have one unit on the stage before or behind, unless pins forbid them."""
        for place, unit in enumerate(trace.units):
            if unit.stage is not None or self.stages.count(self.stages[place]) == 1:
                continue
            for near in (place - 1, place + 1):
                if 0 <= near < len(self.stages) and self.stages[near] != self.stages[place]:
                    stages = (*self.stages[:place], self.stages[near], *self.stages[place + 1 :])
                    yield Cut(stages, self.rank_of)


@dataclass(frozen=True, slots=True)
class Weights:
    """Units with one set of times, and what these are made of.

    Attributes:
        trace: The units.
        parts: Per unit, the seconds of each kind of work that it does. All work of a kind has one time, so
            that an error in it makes all units of the kind slower, or all of them faster.
        spreads: By what share of itself the time of a kind may be wrong.
    """

    trace: Trace
    parts: tuple[Mapping[str, float], ...]
    spreads: Mapping[str, float]

    def loss(self, cut: Cut, other: Cut) -> tuple[float, float]:
        """Returns the seconds that a cut loses to another one per microbatch, and their noise.

        Both cuts are as slow as their slowest rank. The noise is by how much the seconds may be wrong. Work
        that both ranks do counts in neither.
        """
        mine, theirs = self._slowest(cut), self._slowest(other)
        seconds = {kind: mine.get(kind, 0.0) - theirs.get(kind, 0.0) for kind in mine.keys() | theirs.keys()}
        noise = math.fsum(abs(lost) * self.spreads.get(kind, _WORK_SPREAD) for kind, lost in seconds.items())
        return math.fsum(seconds.values()), noise

    def _slowest(self, cut: Cut) -> dict[str, float]:
        """Returns the parts of the rank that has the most seconds."""
        ranks: dict[int, dict[str, float]] = {rank: {} for rank in cut.rank_of}
        for stage, parts in zip(cut.stages, self.parts, strict=True):
            sums = ranks[cut.rank_of[stage]]
            for kind, seconds in parts.items():
                sums[kind] = sums.get(kind, 0.0) + seconds
        return max(ranks.values(), key=lambda parts: sum(parts.values()))


@dataclass(frozen=True, slots=True)
class Steady:
    """A cut.

    Attributes:
        partition: With the times that were measured.
        reason: Why it is not the fastest one by these; empty if it is.
    """

    partition: Partition
    reason: str


def steady_partition(measured: Weights, balanced: Weights, cut: Cutter) -> Steady:
    """Returns the cut that is fastest by measured times, where that is sure, and else the balanced one.

    Args:
        measured: Units with the times that were measured.
        balanced: The same units, with times that are the same in every run.
        cut: Returns the best cut of a trace, as partition() does.
    """
    even = _balanced(balanced, cut)
    fastest = cut(measured.trace)
    if Cut.of(fastest).stages == even.stages:
        return Steady(fastest, "")
    lost, noise = measured.loss(even, Cut.of(fastest))
    if lost > noise:
        return Steady(fastest, "")
    return Steady(
        cut(even.pinned(measured.trace)),
        f"Balanced by operations: by measured times another cut would save {max(lost, 0) * 1e3:.3g} ms per"
        f" microbatch, which is less than their noise of {noise * 1e3:.3g} ms.",
    )


def _balanced(weights: Weights, cut: Cutter) -> Cut:
    """Returns the fastest cut, or one that takes almost the same time and holds less on the fullest rank.

    The time that it loses is at most _WORTH_MEMORY of a step, and may come from errors of measurement. Two
    cuts that differ only in units of one kind have no such error.
    """
    best = found = cut(weights.trace)
    while True:
        for near in Cut.of(found).neighbors(weights.trace):
            lost, noise = weights.loss(near, Cut.of(best))
            if lost >= noise:
                continue
            try:
                other = cut(near.pinned(weights.trace))
            except ValueError:  # above the cap
                continue
            is_equal = other.step <= (1 + _WORTH_MEMORY) * best.step
            if is_equal and max(other.peak_bytes) < max(found.peak_bytes):
                found = other
                break
        else:
            return Cut.of(found)
