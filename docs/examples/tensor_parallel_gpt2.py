"""Train a GPT-2 whose layers are divided over two ranks, in a pipeline of two stages.

    smdp run -n 4 docs/examples/tensor_parallel_gpt2.py

It prints what happens to each module, and the predicted time of a step beside the measured one. Other numbers
of ranks: --stages 1 --tensor 2 on two ranks, or k times as many ranks for k replicas.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
from text_model import make_model, make_rows

import smdp.torch
from smdp.plan import step_on_cores

BATCH = 16  # rows per step and replica


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=2)
    parser.add_argument("--tensor", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    dist.init_process_group("smdp")
    rows, held_out = make_rows()
    model = make_model()
    say(smdp.torch.tensor_parallel_plan(model, options.tensor))
    pipe = smdp.torch.pipeline(
        model,
        options.stages,
        options.microbatches,
        tensor=options.tensor,
        example_inputs=batch_of(rows[:BATCH]),
    )
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-3)

    replica, replicas = pipe.mesh.replica, pipe.mesh.replicas
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(1)).tolist()[replica::replicas]
    times = []
    for step in range(options.steps):
        batch = batch_of([rows[row] for row in order[step * BATCH : (step + 1) * BATCH]])
        optimizer.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        loss = pipe.train_step(batch)
        times.append(time.perf_counter() - start)
        smdp.torch.clip_grad_norm_(pipe, 1.0)
        optimizer.step()
        if (step + 1) % 5 == 0:
            say(f"step {step + 1}: loss {loss:.3f}")
    pipe.eval()
    say(f"held-out text: loss {pipe.eval_step(batch_of(held_out[:BATCH])):.3f} per byte")
    # The first step records the program.
    measured = statistics.median(times[1:])
    partition = pipe.split.partition
    # The ranks of a host share its cores.
    predicted = step_on_cores(
        partition.step, partition.bubble, ranks=dist.get_world_size(), cores=len(os.sched_getaffinity(0))
    )
    say(f"predicted: step {predicted * 1e3:.1f} ms; measured: {measured * 1e3:.1f} ms")
    dist.destroy_process_group()


def batch_of(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def say(text: object) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
