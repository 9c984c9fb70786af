"""Measure what `smdp plan --device cpu` has to know about a host.

    smdp run -n 2 docs/examples/cpu_speed.py --width 512 --heads 8 --sequence 128 --rows 4

Start as many ranks as the host will have, and pass the width, heads, sequence and rows of a microbatch: small
products are slower, and so are ranks that share cores. It prints the arguments.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn

ELEMENTS = 16_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--tensor", type=int, default=1, help="ranks that divide a layer")
    parser.add_argument("--bf16", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    found = {
        "--gflops-16bit" if options.bf16 else "--gflops": gflops(options) / 1e9,
        "--memory-bandwidth": update_bytes(options.width) / 1e9,
        # Both directions, as vendors state it.
        "--interconnect": 2 * sent_bytes() / 1e9,
    }
    if dist.get_rank() == 0:
        print("--device cpu", *(f"{name} {text_of(name, value)}" for name, value in found.items() if value))
    dist.destroy_process_group()


def text_of(name: str, value: float) -> str:
    return f"{value:.1f}" if name.startswith("--gflops") else f"{value:.2f}GBps"


class Block(nn.Module):
    """A layer of a transformer, or what one of `tensor` ranks has of it."""

    def __init__(self, width: int, heads: int, tensor: int) -> None:
        super().__init__()
        self.heads = heads // tensor
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into = nn.Linear(width, 3 * width // tensor)
        self.out = nn.Linear(width // tensor, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width // tensor), nn.GELU(), nn.Linear(4 * width // tensor, width)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        split = self.into(self.norms[0](inputs)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*split, dropout_p=0.1)
        inputs = inputs + nn.functional.dropout(self.out(mixed.transpose(1, 2).flatten(-2)), 0.1)
        return inputs + nn.functional.dropout(self.mlp(self.norms[1](inputs)), 0.1)


def gflops(options: argparse.Namespace) -> float:
    """Operations per second of forward and backward of a block, counted as `smdp plan` does."""
    width, sequence, rows = options.width, options.sequence, options.rows
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    block = Block(width, options.heads, options.tensor).to(dtype)
    inputs = torch.randn(rows, sequence, width, dtype=dtype, requires_grad=True)

    def step() -> None:
        block.zero_grad()
        block(inputs).sum().backward()

    tokens = rows * sequence
    work = 3 * (2 * tokens * 12 * width**2 + 4 * tokens * sequence * width) / options.tensor
    return work / seconds(step)


def update_bytes(width: int) -> float:
    """Bytes of parameters, gradients and states that AdamW updates per second, in matrices of a block."""
    parameters = [nn.Parameter(torch.zeros(4 * width, width)) for _ in range(1 + ELEMENTS // (4 * width**2))]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    size = 16 * sum(parameter.numel() for parameter in parameters)
    return size / seconds(torch.optim.AdamW(parameters).step)


def sent_bytes() -> float:
    """Bytes per second of a rank in an all_reduce, in each direction."""
    ranks = dist.get_world_size()
    if ranks == 1:
        return 0.0
    buffer = torch.zeros(ELEMENTS // 4)
    size = 4 * buffer.numel() * 2 * (ranks - 1) / ranks
    return size / seconds(lambda: dist.all_reduce(buffer), time.perf_counter, min)


def seconds(
    work: Callable[[], object],
    clock: Callable[[], float] = time.thread_time,
    of: Callable[[list[float]], float] = statistics.median,
    runs: int = 9,
) -> float:
    """What work takes while all ranks do it; of the slowest rank. Other programs do not count."""
    times = []
    for run in range(-2, runs):
        dist.barrier()
        begin = clock()
        work()
        if run >= 0:
            times.append(clock() - begin)
    found = torch.tensor(of(times))
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.item()


if __name__ == "__main__":
    main()
