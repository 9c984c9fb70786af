"""What this process has done, and why it did it that way."""

from __future__ import annotations

from typing import Any

from . import _core
from ._world import world


def stats() -> dict[str, Any]:
    """Give counters of this process since its start.

    Returns:
        "operations": a list with "operation", "algorithm", "calls", "bytes" (of this rank's tensors) and
        "seconds" (waiting for other ranks included) each. "steps", "gradient_bytes", "exposed_seconds" (in
        which training waited for gradients; "exposed_seconds_per_step"), "input_seconds" (waiting for data).
        "rank_seconds": by rank, the time it computed in those steps; "slowest_steps": by rank, the steps in
        which it took longest; "slowest_rank": who computed longest, None before the second step.
    """
    names = ("operation", "algorithm", "calls", "bytes", "seconds")
    steps = _core.step_count()
    seconds = list(steps.rank_seconds)
    return {
        "operations": [dict(zip(names, row, strict=True)) for row in _core.operation_counts()],
        "steps": steps.steps,
        "gradient_bytes": steps.bytes,
        "exposed_seconds": steps.exposed_seconds,
        "exposed_seconds_per_step": steps.exposed_seconds / max(1, steps.steps),
        "input_seconds": steps.input_seconds,
        "rank_seconds": seconds,
        "slowest_steps": list(steps.slowest),
        "slowest_rank": seconds.index(max(seconds)) if any(seconds) else None,
    }


def explain(what: Any, group: Any = None) -> str:
    """Say what the cost model chose, and why.

    Args:
        what: Bytes of an all_reduce, or a model wrapped by one of smdp's classes.
        group: A group of smdp or of torch.distributed over smdp; default: the world.

    Raises:
        TypeError: `what` is neither.
    """
    if isinstance(what, int) and not isinstance(what, bool):
        if what < 0:
            raise ValueError(f"[smdp] explain({what}): bytes must be at least 0")
        chosen = world() if group is None else group
        return str(chosen.core.explain(what))
    if callable(getattr(what, "explain", None)):
        return str(what.explain())
    raise TypeError(
        f"[smdp] explain() takes bytes of an all_reduce or a model that smdp wraps, got {type(what).__name__}"
    )
