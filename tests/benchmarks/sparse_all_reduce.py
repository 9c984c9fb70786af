"""Sums of sparse tensors, smdp's against gloo's and against a dense all_reduce of the same tensor.

    smdp run -n 2 tests/benchmarks/sparse_all_reduce.py

Each round makes every call once. Rank 0 prints the median over the rounds, of the slowest rank.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist


def seconds_of(call: Callable[[], None]) -> float:
    """Returns how long a call takes on the slowest rank, from when all ranks are ready."""
    dist.barrier()
    begin = time.perf_counter()
    call()
    taken = torch.tensor([time.perf_counter() - begin], dtype=torch.float64)
    dist.all_reduce(taken, op=dist.ReduceOp.MAX)
    return float(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of the embedding")
    parser.add_argument("--width", type=int, default=64, help="float32 elements of a row")
    parser.add_argument("--looked-up", type=int, default=4096, help="rows that each rank looks up in a step")
    parser.add_argument("--rounds", type=int, default=31)
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    gloo = dist.new_group(backend="gloo")
    generator = torch.Generator().manual_seed(dist.get_rank())
    rows = torch.randint(0, given.rows, (1, given.looked_up), generator=generator)
    values = torch.randn(given.looked_up, given.width, generator=generator)
    whole = torch.zeros(given.rows, given.width)

    def gradient() -> torch.Tensor:
        return torch.sparse_coo_tensor(rows, values, whole.shape, check_invariants=False)

    taken: dict[str, list[float]] = {"smdp, sparse": [], "gloo, sparse": [], "smdp, dense": []}
    for number in range(given.rounds + 3):
        mine, theirs = gradient(), gradient()
        seconds = {
            "smdp, sparse": seconds_of(lambda mine=mine: dist.all_reduce(mine)),
            "gloo, sparse": seconds_of(lambda theirs=theirs: dist.all_reduce(theirs, group=gloo)),
            "smdp, dense": seconds_of(lambda: dist.all_reduce(whole)),
        }
        if number == 0:
            torch.testing.assert_close(mine.values(), theirs.values())
            assert torch.equal(mine.indices(), theirs.indices())
        if number < 3:  # warms up
            continue
        for name, one in seconds.items():
            taken[name].append(one)
    if dist.get_rank() == 0:
        medians = {name: statistics.median(each) for name, each in taken.items()}
        for name, median in medians.items():
            ratio = median / medians["smdp, sparse"]
            print(f"{name:14} {1e3 * median:9.3f} ms {ratio:7.1f} x", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
