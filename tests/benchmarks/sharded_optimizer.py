"""A training step with a sharded optimizer beside data parallelism and what torch has, one thread per rank.

Start it on two ranks: smdp run -n 2 tests/benchmarks/sharded_optimizer.py
With --parts, it also measures what no sharded optimizer can leave out, each alone: forward, backward and half
of the update without communication, and a reduce_scatter and an all_gather of all parameters.
The last three columns are processor time of rank 0, which other programs disturb less than the step.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW, Optimizer

import smdp.torch

Made = tuple[nn.Module, Optimizer]
ALONE = "without communication"


def blocks(count: int, width: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        *(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )
    )


def ddp(model: nn.Module, group: dist.ProcessGroup) -> Made:
    wrapped = (
        smdp.torch.DistributedDataParallel(model)
        if dist.get_backend(group) == "smdp"
        else DistributedDataParallel(model, process_group=group)
    )
    return wrapped, AdamW(wrapped.parameters(), lr=1e-4)


def sharded(model: nn.Module, group: dist.ProcessGroup) -> Made:
    wrapped, optimizer = ddp(model, group)
    assert isinstance(wrapped, smdp.torch.DistributedDataParallel)
    return wrapped, smdp.torch.ShardedOptimizer(optimizer, wrapped)


def shared(model: nn.Module, group: dist.ProcessGroup) -> Made:
    wrapped, optimizer = ddp(model, group)
    assert isinstance(wrapped, smdp.torch.DistributedDataParallel)
    return wrapped, smdp.torch.ShardedOptimizer(optimizer, wrapped, share_parameters=True)


def alone(model: nn.Module, group: dist.ProcessGroup) -> Made:
    """Updates every second block only, as a rank with half of the optimizer does."""
    mine = list(model.children())[group.rank() :: 2]
    return model, AdamW((one for block in mine for one in block.parameters()), lr=1e-4)


def in_shards(model: nn.Module, group: dist.ProcessGroup) -> Made:
    wrapped = smdp.torch.ShardedDataParallel(model)
    return wrapped, AdamW(wrapped.parameters(), lr=1e-4)


def in_shards_until_backward(model: nn.Module, group: dist.ProcessGroup) -> Made:
    wrapped = smdp.torch.ShardedDataParallel(model, reshard_after_forward=False)
    return wrapped, AdamW(wrapped.parameters(), lr=1e-4)


def zero(model: nn.Module, group: dist.ProcessGroup) -> Made:
    wrapped, _ = ddp(model, group)
    return wrapped, ZeroRedundancyOptimizer(wrapped.parameters(), AdamW, process_group=group, lr=1e-4)


def fsdp(model: nn.Module, group: dist.ProcessGroup) -> Made:
    mesh = dist.DeviceMesh.from_group(group, "cpu")
    for block in model.children():
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, AdamW(model.parameters(), lr=1e-4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--shards", action="store_true", help="also ShardedDataParallel")
    parser.add_argument("--parts", action="store_true", help="also the parts of a step, each alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    gloo = dist.new_group(backend="gloo")
    world = dist.group.WORLD
    kinds: dict[str, tuple[Callable[[nn.Module, dist.ProcessGroup], Made], dist.ProcessGroup]] = {
        "ShardedOptimizer on smdp": (sharded, world),
        "with share_parameters=True": (shared, world),
        "DDP on smdp": (ddp, world),
        "DDP on gloo": (ddp, gloo),
        "ZeroRedundancyOptimizer on smdp": (zero, world),
        "ZeroRedundancyOptimizer on gloo": (zero, gloo),
        "FSDP2 on smdp": (fsdp, world),
        "FSDP2 on gloo": (fsdp, gloo),
    }
    if options.shards:
        kinds["ShardedDataParallel on smdp"] = (in_shards, world)
        kinds["reshard_after_forward=False"] = (in_shards_until_backward, world)
    if options.parts:
        kinds[ALONE] = (alone, world)
    batch = torch.randn(options.batch, options.width)
    made = {name: make(blocks(options.blocks, options.width), group) for name, (make, group) in kinds.items()}
    walls: dict[str, list[float]] = {name: [] for name in made}
    whole = torch.ones(sum(one.numel() for one in made["DDP on smdp"][0].parameters()) // 2 * 2)
    travels: list[float] = []
    parts: dict[str, list[list[float]]] = {name: [] for name in made}
    for round_ in range(-2, options.rounds):
        # What ran before leaves the caches in a state of its own, so the order changes.
        for name in random.Random(round_).sample(list(made), len(made)):
            model, optimizer = made[name]
            dist.barrier()
            begin = time.perf_counter()
            part = step(model, optimizer, batch)
            if round_ >= 0:
                walls[name].append(time.perf_counter() - begin)
                parts[name].append(part)
        if options.parts:
            travels.append(travel(whole))
            made[ALONE][0].zero_grad()
    if dist.get_rank() == 0:
        medians = {name: 1e3 * statistics.median(found) for name, found in walls.items()}
        reference = medians["ShardedOptimizer on smdp"]
        print(f"{'':32}    step         forward backward update")
        for name, median in medians.items():
            shown = [f"{1e3 * statistics.median(found):6.0f} ms" for found in zip(*parts[name], strict=True)]
            print(f"{name:32} {median:7.0f} ms  {median / reference:5.2f}", *shown)
        if options.parts:
            travel_ms = 1e3 * statistics.median(travels[2:])
            ratio = (medians[ALONE] + travel_ms) / medians["DDP on smdp"]
            print(f"reduce_scatter and all_gather {travel_ms:10.0f} ms; all parts {ratio:.2f} of DDP on smdp")
    dist.destroy_process_group()


def step(model: nn.Module, optimizer: Optimizer, batch: Tensor) -> list[float]:
    """Returns the processor time of forward, backward and update."""
    times = [time.process_time()]
    optimizer.zero_grad()
    loss = model(batch).square().mean()
    times.append(time.process_time())
    loss.backward()
    times.append(time.process_time())
    optimizer.step()
    times.append(time.process_time())
    return [after - before for before, after in itertools.pairwise(times)]


def travel(whole: Tensor) -> float:
    """Returns the seconds in which gradients come to their owners, and parameters back."""
    half = torch.ones(len(whole) // 2)
    dist.barrier()
    begin = time.perf_counter()
    dist.reduce_scatter_single(half, whole)
    dist.all_gather_single(whole, half)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
