"""What smdp.preempted() adds to a training step: `smdp run -n 2 tests/benchmarks/preemption_step.py`.

A step computes and sums a gradient. Blocks of steps with and without the call take turns, and the figures are
medians over all steps: of the call itself, and of whole steps.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import smdp


def main() -> None:
    """Measure, and print on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=50, help="of a block")
    parser.add_argument("--compute-ms", type=float, default=5.0)
    parser.add_argument("--sleep", action="store_true", help="an accelerator computes, the core is free")
    parser.add_argument("--gradient-bytes", type=int, default=1 << 20)
    options = parser.parse_args()
    world = smdp.init()
    gradient = np.ones(options.gradient_bytes // 4, np.float32)
    matrix = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)
    smdp.preempted()
    calls: list[float] = []
    steps: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(options.rounds):
        for asks in (True, False):
            world.barrier()
            for _ in range(options.steps):
                begin = time.perf_counter()
                end = begin + 1e-3 * options.compute_ms
                if options.sleep:
                    time.sleep(1e-3 * options.compute_ms)
                while time.perf_counter() < end:
                    matrix @ matrix
                world.all_reduce(gradient, op=smdp.AVG)
                asked = time.perf_counter()
                if asks:
                    smdp.preempted()
                    calls.append(time.perf_counter() - asked)
                steps[asks].append(time.perf_counter() - begin)
    if world.rank == 0:
        with_it, without = (1e6 * float(np.median(steps[asks])) for asks in (True, False))
        print(f"preempted()           {1e6 * float(np.median(calls)):9.1f} us")
        print(f"step without the call {without:9.1f} us")
        print(f"step with it          {with_it:9.1f} us, {100 * (with_it / without - 1):+.2f} %")


if __name__ == "__main__":
    main()
