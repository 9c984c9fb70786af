"""What the Trainer's log tells of gradients: milliseconds and megabytes per step."""

from __future__ import annotations

from dataclasses import dataclass

import smdp


class GradientNumbers:
    """Means over the steps since the last report.

    Attributes:
        is_of_torch: Torch's own reducer is at work, as on GPUs: it counts no steps and no waiting, so steps
            are those told to count_step(), and bytes those of all sums.
    """

    def __init__(self) -> None:
        self.is_of_torch = False
        self._steps = 0
        self._last = _Counters.read()

    def count_step(self) -> None:
        """Say that gradients have been averaged."""
        self._steps += 1

    def report(self) -> dict[str, float]:
        """Give the numbers, as the log names them; nothing where there was no step."""
        now = _Counters.read()
        last, self._last = self._last, now
        told, self._steps = self._steps, 0
        steps = told if self.is_of_torch else now.steps - last.steps
        if steps == 0:
            return {}
        size = (
            now.sum_bytes - last.sum_bytes if self.is_of_torch else now.gradient_bytes - last.gradient_bytes
        )
        exposed = {} if self.is_of_torch else {"smdp_exposed_ms": 1e3 * (now.exposed - last.exposed) / steps}
        return {
            "smdp_communication_ms": 1e3 * (now.sum_seconds - last.sum_seconds) / steps,
            **exposed,
            "smdp_gradient_mb": 1e-6 * size / steps,
            "smdp_input_ms": 1e3 * (now.input - last.input) / steps,
        }


@dataclass(frozen=True)
class _Counters:
    steps: int
    gradient_bytes: int
    exposed: float
    input: float
    sum_bytes: int
    sum_seconds: float

    @classmethod
    def read(cls) -> _Counters:
        stats = smdp.stats()
        # Sums only: what evaluation gathers and checkpoints wait for is not training's.
        sums = [row for row in stats["operations"] if row["operation"] == "all_reduce"]
        return cls(
            stats["steps"],
            stats["gradient_bytes"],
            stats["exposed_seconds"],
            stats["input_seconds"],
            sum(row["bytes"] for row in sums),
            sum(row["seconds"] for row in sums),
        )
