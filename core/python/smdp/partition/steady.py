"""Chooses a cut that does not depend on noise in measured times.

Measured times have an error proportional to their size. If the error exceeds what a cut gains, another run
could choose a different cut. In that case, the balanced cut is used, which is based on the numbers of
operations and bytes moved and is therefore the same in every run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from smdp._core import Partition
from smdp.partition.trace import Trace

# The relative error of the time of a kind of work that is estimated from its operations.
_WORK_SPREAD = 0.2
# The fraction of a step by which a cut may be slower if it needs less memory.
_WORTH_MEMORY = 0.02

Cutter = Callable[[Trace], Partition]


@dataclass(frozen=True, slots=True)
class Cut:
    """An assignment of units to stages and ranks.

    Attributes:
        stages: The stage of each unit.
        rank_of: The rank of each stage.
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
        """Returns the trace with every unit pinned to its stage in this cut."""
        units = tuple(
            replace(unit, stage=stage) for unit, stage in zip(trace.units, self.stages, strict=True)
        )
        return replace(trace, units=units)

    def neighbors(self, trace: Trace) -> Iterator[Cut]:
        """Yields the cuts with one unit moved to an adjacent stage; pinned units are not moved."""
        for place, unit in enumerate(trace.units):
            if unit.stage is not None or self.stages.count(self.stages[place]) == 1:
                continue
            for near in (place - 1, place + 1):
                if 0 <= near < len(self.stages) and self.stages[near] != self.stages[place]:
                    stages = (*self.stages[:place], self.stages[near], *self.stages[place + 1 :])
                    yield Cut(stages, self.rank_of)


@dataclass(frozen=True, slots=True)
class Weights:
    """Units with one set of times, broken down by kind of work.

    Attributes:
        trace: The units.
        parts: For each unit, the seconds of each kind of work. Work of the same kind shares one measured
            time, so an error makes all units of the kind slower or all of them faster.
        spreads: The relative error of the time of each kind of work.
    """

    trace: Trace
    parts: tuple[Mapping[str, float], ...]
    spreads: Mapping[str, float]

    def loss(self, cut: Cut, other: Cut) -> tuple[float, float]:
        """Returns by how many seconds per microbatch a cut is slower than another, and the noise of that.

        A cut is as slow as its slowest rank. The noise is the possible error of the difference; work that the
        slowest ranks of both cuts do cancels out.
        """
        mine, theirs = self._slowest(cut), self._slowest(other)
        seconds = {kind: mine.get(kind, 0.0) - theirs.get(kind, 0.0) for kind in mine.keys() | theirs.keys()}
        noise = math.fsum(abs(lost) * self.spreads.get(kind, _WORK_SPREAD) for kind, lost in seconds.items())
        return math.fsum(seconds.values()), noise

    def _slowest(self, cut: Cut) -> dict[str, float]:
        """Returns the seconds of each kind of work on the slowest rank."""
        ranks: dict[int, dict[str, float]] = {rank: {} for rank in cut.rank_of}
        for stage, parts in zip(cut.stages, self.parts, strict=True):
            sums = ranks[cut.rank_of[stage]]
            for kind, seconds in parts.items():
                sums[kind] = sums.get(kind, 0.0) + seconds
        return max(ranks.values(), key=lambda parts: sum(parts.values()))


@dataclass(frozen=True, slots=True)
class Steady:
    """The chosen cut.

    Attributes:
        partition: The partition, with measured times.
        reason: Why it is not the fastest one by measured times; empty if it is.
    """

    partition: Partition
    reason: str


def steady_partition(measured: Weights, balanced: Weights, cut: Cutter) -> Steady:
    """Returns the fastest cut by measured times if its gain exceeds the noise, else the balanced cut.

    Args:
        measured: Units with measured times.
        balanced: The same units with estimated times, which are the same in every run.
        cut: Function that returns the best partition of a trace, such as partition().
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
        f"Balanced by operations: by measured times, another cut would save {max(lost, 0) * 1e3:.3g} ms per"
        f" microbatch, which is less than the measurement noise of {noise * 1e3:.3g} ms.",
    )


def _balanced(weights: Weights, cut: Cutter) -> Cut:
    """Returns the fastest cut, or one of almost the same time that needs less memory on the fullest rank.

    That cut is at most _WORTH_MEMORY of a step slower, and the difference must be within the noise. Cuts that
    differ only in units of one kind have no noise.
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
