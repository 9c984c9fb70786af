"""Aligns the clocks of several machines: no rank leaves a collective before all ranks have entered it."""

from __future__ import annotations

import math
from collections import defaultdict

from smdp.cli.trace.files import Trace

# Operations that end on no rank before they have begun on all ranks.
_TOTAL = {"all_reduce", "all_reduce_sparse", "all_gather", "reduce_scatter", "all_to_all", "barrier"}


def offsets(traces: list[Trace]) -> dict[int, float]:
    """Returns the microseconds to add to each rank's times to convert them to the first rank's clock.

    Ranks that share a clock are treated together. Every collective limits a clock's offset: after the shift,
    its end on one clock is not before its begin on the other, and vice versa. The result is the middle of the
    interval that all collectives allow.
    """
    reference = traces[0]
    begins: dict[tuple[str, int], float] = defaultdict(lambda: -math.inf)
    ends: dict[tuple[str, int], float] = defaultdict(lambda: math.inf)
    for trace in traces:
        if trace.clock == reference.clock:
            for key, begin, end in _operations(trace):
                begins[key] = max(begins[key], begin)
                ends[key] = min(ends[key], end)
    least: dict[str, float] = defaultdict(lambda: -math.inf)
    most: dict[str, float] = defaultdict(lambda: math.inf)
    for trace in traces:
        for key, begin, end in _operations(trace):
            if key in begins:
                least[trace.clock] = max(least[trace.clock], begins[key] - end)
                most[trace.clock] = min(most[trace.clock], ends[key] - begin)
    result: dict[int, float] = {}
    for trace in traces:
        low, high = least[trace.clock], most[trace.clock]
        known = trace.clock != reference.clock and math.isfinite(low) and math.isfinite(high)
        result[trace.rank] = (low + high) / 2 if known else 0.0
    return result


def _operations(trace: Trace) -> list[tuple[tuple[str, int], float, float]]:
    return [
        ((event["args"]["group"], event["args"]["sequence"]), event["ts"], event["ts"] + event["dur"])
        for event in trace.spans
        if event["cat"] in ("operation", "calibration") and event["name"] in _TOTAL
    ]
