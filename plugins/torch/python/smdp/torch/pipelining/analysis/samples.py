"""The time of one kind of work, estimated from all of its measurements."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import NamedTuple

# Relative variation of reliable times of one kind between runs, due to caches, clock rates and other load.
LEAST_SPREAD = 0.2


class Passes(NamedTuple):
    """Seconds of the passes of one call; `both` is the time of input and weight gradients together."""

    forward: float = 0.0
    backward_input: float = 0.0
    both: float = 0.0

    @property
    def backward_weight(self) -> float:
        """Seconds of the weight gradients: the time of both gradients minus that of the input gradient."""
        return max(self.both - self.backward_input, 0.0)

    @property
    def total(self) -> float:
        """Seconds of forward and backward."""
        return self.forward + max(self.both, self.backward_input)


@dataclass(slots=True)
class Samples:
    """Times of one kind of work: one class of module, or one function, on inputs of the same shapes.

    Attributes:
        times: The measured times of all runs of all calls.
        work: The times of each call computed from its operations; see `clocks.work_clock`.
    """

    times: list[Passes] = field(default_factory=list)
    work: list[Passes] = field(default_factory=list)

    def least(self) -> Passes:
        """Returns the minimum of each time, because disturbances can only lengthen a run."""
        return Passes(*map(min, zip(*self.times, strict=True))) if self.times else self.mean_work()

    def mean_work(self) -> Passes:
        """Returns the mean over the calls, which differ only if their work depends on values."""
        return Passes(*(sum(column) / len(self.work) for column in zip(*self.work, strict=True)))

    def spread(self) -> float:
        """Returns the relative error that the least time may have.

        This is the relative distance to the second least time, and at least LEAST_SPREAD. The error of a
        single time is unknown and counts as 1.
        """
        if not self.times:
            return 0.0
        totals = sorted(passes.total for passes in self.times)
        if len(totals) == 1 or totals[0] <= 0:
            return 1.0
        return min(1.0, max(LEAST_SPREAD, totals[1] / totals[0] - 1))


def merged(many: list[dict[str, Samples]]) -> dict[str, Samples]:
    """Returns the samples of all ranks by kind."""
    found: dict[str, Samples] = {}
    for kind, samples in itertools.chain.from_iterable(each.items() for each in many):
        both = found.setdefault(kind, Samples())
        both.times += samples.times
        both.work += samples.work
    return found
