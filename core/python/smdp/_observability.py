"""Statistics of this process, and explanations of the cost model's choices."""

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
# Names of figures that a warning was logged for.
_told: set[str] = set()
# The step, time and counters of the last print_step().
_last: tuple[int, float, dict[str, Any]] | None = None


def stats() -> dict[str, Any]:
    """Returns the counters of this process since it started.

    Returns:
        A dictionary with the keys

        * "operations": A list of dictionaries, one per operation and algorithm, with "operation",
          "algorithm", "calls", "bytes" (of this rank's tensors), and "seconds" (including the time spent
          waiting for other ranks).
        * "steps": Number of training steps.
        * "gradient_bytes": Bytes of gradients that were reduced.
        * "exposed_seconds", "exposed_seconds_per_step": Time that training waited for gradients.
        * "input_seconds": Time that training waited for input data.
        * "rank_seconds": For each rank, the time it computed in these steps.
        * "slowest_steps": For each rank, the number of steps in which it was the slowest.
        * "slowest_rank": The rank that computed longest; None before the second step.
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
    """Returns a text that explains what the cost model chose and why.

    Args:
        what: The size of an all_reduce in bytes, or a model wrapped by one of smdp's classes.
        group: A group of smdp, or of torch.distributed with the smdp backend. Default: the world.

    Raises:
        TypeError: `what` or `group` has another type.
        ValueError: The number of bytes is negative, or 2 to the 63rd or more.
    """
    if isinstance(what, int) and not isinstance(what, bool):
        if not 0 <= what < 1 << 63:
            raise ValueError(f"[smdp] explain({what}): the size must be at least 0 and below 2 to the 63rd")
        core = any_core() if group is None else getattr(group, "core", None)
        if not isinstance(core, _core.Group):
            raise TypeError(
                f"[smdp] explain(): group is of type {type(group).__name__}; pass an smdp.Group or a"
                " torch.distributed group with the smdp backend"
            )
        return core.explain(what)
    if callable(getattr(what, "explain", None)):
        return str(what.explain())
    raise TypeError(
        "[smdp] explain() takes the size of an all_reduce in bytes or a model wrapped by smdp, but got"
        f" {type(what).__module__}.{type(what).__qualname__}"
    )


def _number(name: str, value: SupportsFloat) -> float:
    """Returns a figure as a float, or NaN for arrays and numbers that cannot be converted."""
    try:
        # item() accepts arrays of shape (1,) and avoids torch's warning for tensors that require gradients.
        return float(value.item() if hasattr(value, "item") else value)
    except Exception as error:
        if not hasattr(value, "shape") and not isinstance(value, numbers.Number):
            raise TypeError(
                f"[smdp] print_step() got {name}={shown(value)}, which is not a number"
            ) from error
        if name not in _told:
            _told.add(name)
            _log.follow()
            _logger.warning("[smdp] print_step() prints %s=nan: it is not a single number (%s)", name, error)
        return math.nan


def print_step(step: int, **figures: SupportsFloat) -> None:
    """Prints a line of figures on rank 0. All ranks may call it; the others print nothing.

    From the second line on, it adds averages per step since the previous line:

    * step_ms: Duration of a step.
    * collectives_ms: Duration of this rank's collectives, including the part that overlaps with computation.
    * exposed_ms: Time that training waited for gradients.
    * input_ms: Time that training waited for input data.

    The last two appear only if smdp's classes or hooks reduce the gradients. If the step number restarts, as
    in a new epoch, that line has no averages.

    Problems that depend on the data do not raise: an array with several elements is printed as nan, and a
    line that cannot be written is skipped. Each logs a warning once.

    Args:
        step: The number of the step.
        **figures: Numbers or tensors with one element, such as loss=0.25.

    Raises:
        ValueError: A figure has one of the names above, or the step does not fit into 64 bits.
        TypeError: A figure or the step is not a number.

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
        if counters["steps"] > before["steps"]:  # otherwise, these were not measured
            means["exposed_ms"] = counters["exposed_seconds"] - before["exposed_seconds"]
            means["input_ms"] = counters["input_seconds"] - before["input_seconds"]
        means = {name: 1e3 * seconds / steps for name, seconds in means.items()}
    taken = set(figures) & {"smdp_step", "step_ms", "collectives_ms", "exposed_ms", "input_ms"}
    if taken:
        raise ValueError(
            f"[smdp] print_step() uses the name {', '.join(sorted(taken))} itself; choose another name"
        )
    values = [f"{name}={_number(name, value):.6g}" for name, value in [*figures.items(), *means.items()]]
    _last = step, now, counters
    if _rank() == 0:
        write_line(" ".join([f"smdp_step={step}", *values]))


def _rank() -> int:
    try:
        return int(any_core().rank)
    except ConfigError:  # training may use another library's groups; the launcher still knows the rank
        with contextlib.suppress(ConfigError):
            return detect(needs_master=False).rank
        return 0


def _collective_seconds(counters: dict[str, Any]) -> float:
    return float(sum(operation["seconds"] for operation in counters["operations"]))
