"""What the engine takes for each action of a schedule, by modules on two ranks that cost next to nothing.

Start it on two ranks: smdp run -n 2 tests/benchmarks/pipeline_overhead.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

import smdp.torch

WIDTH = 8


def loss_of(output: Tensor) -> Tensor:
    return output.sum()


def least(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Give the least seconds, and the least seconds of processor time, of some runs."""
    wall, processor = [], []
    for _ in range(repeats):
        begin, busy = time.perf_counter(), time.process_time()
        run()
        wall.append(time.perf_counter() - begin)
        processor.append(time.process_time() - busy)
    return min(wall), min(processor)


def measure(units: int, options: argparse.Namespace) -> None:
    rank, microbatches = dist.get_rank(), options.microbatches
    torch.manual_seed(0)
    batch = torch.randn(microbatches, WIDTH)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2 * units)))
    parts = [nn.Linear(WIDTH, WIDTH) for _ in range(units)]
    pins = {str(place): place // units for place in range(2 * units)}
    pipe = smdp.torch.pipeline(model, 2, microbatches, options.schedule, batch, pins=pins)

    def alone() -> None:
        """This rank's modules, without a pipeline."""
        for microbatch in batch.chunk(microbatches):
            hidden = microbatch.requires_grad_(rank == 1)
            for part in parts:
                hidden = part(hidden)
            if rank == 1:
                (loss_of(hidden) / microbatches).backward()
            else:
                hidden.backward(hidden.detach())

    for _ in range(3):
        pipe.train_step(batch, loss_of)
    dist.barrier()
    if rank == 0:
        own = least(alone, options.repeats)
    dist.barrier()
    if rank == 1:
        own = least(alone, options.repeats)
    dist.barrier()
    whole = least(lambda: pipe.train_step(batch, loss_of), options.repeats)
    actions = len(pipe.timeline)
    found = [1e6 * (step - alone) / actions for step, alone in zip(whole, own, strict=True)]
    print(
        f"{units} modules per stage: {actions} actions in {1e3 * whole[0]:.1f} ms, the modules' own"
        f" {1e3 * own[0]:.1f} ms; per action {found[0]:.0f} us, of processor time {found[1]:.0f} us"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--microbatches", type=int, default=64)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--repeats", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    for units in (1, 8):
        measure(units, options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
