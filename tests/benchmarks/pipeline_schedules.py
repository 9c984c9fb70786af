"""Milliseconds to generate, simulate, lower and verify a large pipeline schedule, on one core."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

from smdp import pipeline

Result = TypeVar("Result")


def best_of(rounds: int, work: Callable[[], Result]) -> tuple[float, Result]:
    """Give the least milliseconds of some calls, and the last result."""
    least = float("inf")
    for _ in range(rounds):
        begin = time.process_time()
        result = work()
        least = min(least, 1e3 * (time.process_time() - begin))
    return least, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedule", default="interleaved_1f1b")
    parser.add_argument("--stages", type=int, default=64)
    parser.add_argument("--microbatches", type=int, default=512)
    parser.add_argument("--virtual-stages", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()

    made, schedule = best_of(
        options.rounds,
        lambda: pipeline.generate(
            options.schedule,
            stages=options.stages,
            microbatches=options.microbatches,
            virtual_stages=options.virtual_stages,
        ),
    )
    part = 1 / options.virtual_stages
    simulated, result = best_of(
        options.rounds,
        lambda: pipeline.simulate(schedule, forward=part, backward_input=part, backward_weight=part),
    )
    verified, _ = best_of(options.rounds, lambda: pipeline.verify(schedule))
    lowered_in, lowered = best_of(options.rounds, schedule.lower)
    verified_lowered, _ = best_of(options.rounds, lambda: pipeline.verify(lowered))
    print(
        f"{options.schedule}, p {options.stages}, m {options.microbatches}, v {options.virtual_stages}: "
        f"{sum(map(len, schedule.rows))} computations, {sum(map(len, lowered.rows))} actions lowered, "
        f"makespan {result.makespan:g}"
    )
    print(f"generate {made:.1f} + simulate {simulated:.1f} + verify {verified:.1f} = ", end="")
    print(f"{made + simulated + verified:.1f} ms")
    print(f"lower {lowered_in:.1f} ms, verify lowered {verified_lowered:.1f} ms")


if __name__ == "__main__":
    main()
