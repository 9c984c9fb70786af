"""Which modules to recompute for a budget of bytes: the fewest seconds of forward that are computed again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

_BUCKETS = 512
_TRIES = 16  # of how much a forward may keep


class Cost(NamedTuple):
    """What one call of a module takes.

    Attributes:
        seconds: Of its forward.
        kept: Bytes that it keeps for backward without recomputation.
        inputs: Bytes that it keeps if it is recomputed.
    """

    seconds: float
    kept: int
    inputs: int


class _State(NamedTuple):
    seconds: float
    kept: int
    spans: tuple[tuple[int, int], ...]  # the groups so far, as (begin, end)


def groups_within(costs: Sequence[Cost], budget: float, in_flight: float = 1) -> list[tuple[int, int]] | None:
    """Returns the groups of consecutive modules to recompute, as (begin, end); the others keep everything.

    Activations are freed in reverse order, so while a group runs again, only those of modules before it and
    its own are in memory, and those of the other calls in flight.

    Args:
        costs: The modules in the order in which they run.
        budget: Most bytes in memory, over forward and backward.
        in_flight: Most forwards whose backward has not run.

    Returns:
        The groups for which the fewest seconds are computed again; None if no groups meet the budget.
    """
    found = []
    tries = 1 if in_flight <= 1 else _TRIES
    for number in range(1, tries + 1):
        # The more a forward keeps, the less is left for a group that runs again.
        kept = budget / max(in_flight, 1) * number / tries
        state = _best(costs, kept, budget - (in_flight - 1) * kept)
        if state is not None:
            found.append(state)
    return list(min(found).spans) if found else None


def least_budget(costs: Sequence[Cost], in_flight: float = 1) -> int:
    """Returns the fewest bytes for which groups_within() finds groups, within a thousandth."""
    low, high = 0, math.ceil(max(in_flight, 1) * sum(cost.kept + cost.inputs for cost in costs))
    while high - low > high // 1024 + 1:
        middle = (low + high) // 2
        is_met = groups_within(costs, middle, in_flight) is not None
        low, high = (low, middle) if is_met else (middle, high)
    return high


def _best(costs: Sequence[Cost], most_kept: float, most_at_once: float) -> _State | None:
    # For each number of modules, the best states by the bytes kept so far.
    best: list[dict[int, _State]] = [{} for _ in range(len(costs) + 1)]
    best[0][0] = _State(0.0, 0, ())
    width = max(most_kept / _BUCKETS, 1.0)
    for begin, cost in enumerate(costs):
        for state in best[begin].values():
            _put(best[begin + 1], state.seconds, state.kept + cost.kept, state.spans, most_kept, width)
            seconds, kept, rebuilt = state.seconds, state.kept + cost.inputs, 0
            for end in range(begin + 1, len(costs) + 1):
                seconds += costs[end - 1].seconds
                rebuilt += costs[end - 1].kept
                if kept + rebuilt > most_at_once:
                    break
                _put(best[end], seconds, kept, (*state.spans, (begin, end)), most_kept, width)
    return min(best[-1].values(), default=None)


def _put(
    states: dict[int, _State],
    seconds: float,
    kept: int,
    spans: tuple[tuple[int, int], ...],
    budget: float,
    width: float,
) -> None:
    if kept > budget:
        return
    bucket = int(kept / width)
    known = states.get(bucket)
    if known is None or (seconds, kept) < (known.seconds, known.kept):
        states[bucket] = _State(seconds, kept, spans)
