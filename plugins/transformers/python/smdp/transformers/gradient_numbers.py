"""Numbers about gradients for the Trainer's log, in milliseconds and megabytes per step."""

from __future__ import annotations

from dataclasses import dataclass

import smdp


class GradientNumbers:
    """Computes means over the steps since the last report."""

    def __init__(self) -> None:
        self._last = _Counters.read()

    def report(self) -> dict[str, float]:
        """Returns the numbers under their names in the log, or an empty dict if there was no step."""
        now = _Counters.read()
        last, self._last = self._last, now
        steps = now.steps - last.steps
        if steps == 0:
            return {}
        return {
            "smdp_communication_ms": 1e3 * (now.sum_seconds - last.sum_seconds) / steps,
            "smdp_exposed_ms": 1e3 * (now.exposed - last.exposed) / steps,
            "smdp_gradient_mb": 1e-6 * (now.gradient_bytes - last.gradient_bytes) / steps,
            "smdp_input_ms": 1e3 * (now.input - last.input) / steps,
        }


@dataclass(frozen=True)
class _Counters:
    steps: int
    gradient_bytes: int
    exposed: float
    input: float
    sum_seconds: float

    @classmethod
    def read(cls) -> _Counters:
        stats = smdp.stats()
        # Only sums count, because other operations belong to evaluation and checkpoints.
        sums = [row for row in stats["operations"] if row["operation"] in ("all_reduce", "reduce_scatter")]
        return cls(
            stats["steps"],
            stats["gradient_bytes"],
            stats["exposed_seconds"],
            stats["input_seconds"],
            sum(row["seconds"] for row in sums),
        )
