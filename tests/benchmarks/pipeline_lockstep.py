"""What a step takes when host reads resume at fixed places, beside one in which they resume when answered.

The modules sleep, so that other work on the machine counts little. One stage is slower than the other:
there fixed places cost most. Start it on two ranks: smdp run -n 2 tests/benchmarks/pipeline_lockstep.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from smdp.torch.pipelining.pipelined.pipelining import pipeline_of
from smdp.torch.pipelining.pipelined.split_over_ranks import SplitOptions

WIDTH = 8


class Wait(torch.autograd.Function):
    """Copies a tensor, and sleeps in both directions: as long again for the backward as for the forward."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, milliseconds: float) -> Tensor:
        ctx.milliseconds = milliseconds
        time.sleep(milliseconds / 1e3)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.milliseconds / 1e3)
        return gradient, None


class Unit(nn.Module):
    """A linear layer that takes a given time."""

    def __init__(self, milliseconds: float) -> None:
        super().__init__()
        self.milliseconds = milliseconds
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        return Wait.apply(self.linear(hidden), self.milliseconds)


class Reading(nn.Module):
    """A model whose own code reads a value between its stages, so that every microbatch has a host read."""

    def __init__(self, milliseconds: list[float]) -> None:
        super().__init__()
        self.units = nn.ModuleList(Unit(one) for one in milliseconds)

    def forward(self, hidden: Tensor) -> Tensor:
        for unit in self.units:
            hidden = unit(hidden)
            if hidden.detach().abs().max().item() > 1e6:
                hidden = hidden / 2
        return hidden


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--milliseconds", type=float, nargs=2, default=[8.0, 4.0], help="of each stage's forward"
    )
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    torch.manual_seed(0)  # all ranks of a pipeline read the same batch
    batch = torch.randn(options.microbatches, WIDTH)
    pipes = []
    for is_in_lockstep in (False, True):
        torch.manual_seed(0)
        split = SplitOptions(
            stages=2,
            microbatches=options.microbatches,
            schedule=options.schedule,
            is_in_lockstep=is_in_lockstep,
        )
        model = Reading(options.milliseconds)
        pipes.append(pipeline_of(model, split, batch, pins={"units.0": 0, "units.1": 1}))
    seconds: list[list[float]] = [[], []]
    for round_ in range(-3, options.rounds):
        for pipe, found in zip(pipes, seconds, strict=True):
            dist.barrier()
            begin = time.perf_counter()
            pipe.train_step(batch, Tensor.sum)
            if round_ >= 0:
                found.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        free, fixed = (1e3 * statistics.median(found) for found in seconds)
        print(
            f"{options.schedule}, stages of {options.milliseconds} ms, {options.microbatches} microbatches:"
            f" {free:.1f} ms when answered, {fixed:.1f} ms at fixed places, {100 * (fixed / free - 1):+.1f} %"
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
