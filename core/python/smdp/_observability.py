"""What this process has done, and why it did it that way."""

from __future__ import annotations

import contextlib
import logging
import math
import numbers
import time
from typing import Any, SupportsFloat

from . import _core, _log
from ._arguments import integer
from ._errors import ConfigError
from ._shown import shown
from ._stdout import write_line
from ._world import any_core
from .environments import detect

_logger = logging.getLogger("smdp")
# Figures that a warning was logged of.
_told: set[str] = set()
# The step, the time and the counters of the last print_step().
_last: tuple[int, float, dict[str, Any]] | None = None


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
        TypeError: `what` or `group` is none of these.
        ValueError: No message has so many bytes.
    """
    if isinstance(what, int) and not isinstance(what, bool):
        if not 0 <= what < 1 << 63:
            raise ValueError(f"[smdp] explain({what}): bytes must be at least 0, and below 2 to the 63rd")
        core = any_core() if group is None else getattr(group, "core", None)
        if not isinstance(core, _core.Group):
            raise TypeError(
                f"[smdp] explain(): group is of type {type(group).__name__}; it takes a smdp.Group, or a"
                " group of torch.distributed with the backend smdp"
            )
        return core.explain(what)
    if callable(getattr(what, "explain", None)):
        return str(what.explain())
    raise TypeError(
        "[smdp] explain() takes bytes of an all_reduce or a model that smdp wraps, got"
        f" {type(what).__module__}.{type(what).__qualname__}"
    )


def _number(name: str, value: SupportsFloat) -> float:
    """Returns a float; nan for an array or a number that has none, which depends on the data."""
    try:
        # float() takes no array with an axis, and torch would warn of a loss that leaves its graph.
        return float(value.item() if hasattr(value, "item") else value)
    except Exception as error:
        if not hasattr(value, "shape") and not isinstance(value, numbers.Number):
            raise TypeError(
                f"[smdp] print_step() got {name}={shown(value)}, which is not a number"
            ) from error
        if name not in _told:
            _told.add(name)
            _log.follow()
            _logger.warning("[smdp] print_step() prints %s=nan: it is not one number (%s)", name, error)
        return math.nan


def print_step(step: int, **figures: SupportsFloat) -> None:
    """Print a line of figures, on rank 0 alone; all ranks may call it.

    From the second line on it has the means per step since the last one: step_ms; collectives_ms, how long
    this rank's collectives took, together with what they overlap; and, where smdp's classes or hooks reduce
    the gradients, exposed_ms, in which training waited for them, and input_ms, in which it waited for data.
    Where steps are counted from the beginning again, as in another epoch, that line is a first one again.

    It does not raise for what training brings about: an array with several elements is printed as nan, and a
    line that cannot be written is left out; a warning says so once.

    Args:
        step: The number of the step.
        **figures: Numbers, tensors of one too: loss=0.25. None of the names above.

    Raises:
        ValueError: A figure has one of the names above, or the step has more than 64 bits.
        TypeError: A figure or the step is of a type that is not a number.

    Example:
        >>> print_step(10, loss=0.25)
        smdp_step=10 loss=0.25
    """
    global _last
    step = integer("step", step, 64)
    now, counters = time.perf_counter(), stats()
    means: dict[str, float] = {}
    steps = 0 if _last is None else step - _last[0]
    if _last is not None and steps > 0:
        before = _last[2]
        means = {
            "step_ms": now - _last[1],
            "collectives_ms": _collective_seconds(counters) - _collective_seconds(before),
        }
        if counters["steps"] > before["steps"]:  # else nobody has measured these
            means["exposed_ms"] = counters["exposed_seconds"] - before["exposed_seconds"]
            means["input_ms"] = counters["input_seconds"] - before["input_seconds"]
        means = {name: 1e3 * seconds / steps for name, seconds in means.items()}
    taken = set(figures) & {"smdp_step", "step_ms", "collectives_ms", "exposed_ms", "input_ms"}
    if taken:
        raise ValueError(f"[smdp] print_step() measures {', '.join(sorted(taken))} itself; give another name")
    values = [f"{name}={_number(name, value):.6g}" for name, value in [*figures.items(), *means.items()]]
    _last = step, now, counters
    if _rank() == 0:
        write_line(" ".join([f"smdp_step={step}", *values]))


def _rank() -> int:
    try:
        return int(any_core().rank)
    except ConfigError:  # other groups may be at work, of whose ranks the launcher knows
        with contextlib.suppress(ConfigError):
            return detect(needs_master=False).rank
        return 0


def _collective_seconds(counters: dict[str, Any]) -> float:
    return float(sum(operation["seconds"] for operation in counters["operations"]))
