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
from typing import Any

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
    ranks = dist.get_world_size()
    if ranks % options.tensor:
        parser.error(f"--tensor {options.tensor} does not divide the {ranks} ranks")
    overhead = seconds(training(tiny_block(options), (1, 8)), runs=25)
    bandwidth = sent_bytes()
    block, latency = block_and_sum(options, bandwidth)
    # Of a block that is hardly longer than its start, the difference is noise.
    rate = operations(options) / max(block - overhead, block / 4)
    found = {
        "--gflops-16bit" if options.bf16 else "--gflops": f"{rate / 1e9:.1f}",
        "--memory-bandwidth": f"{update_bytes(options.width) / 1e9:.2f}GBps",
        "--layer-overhead-us": f"{1e6 * overhead:.0f}",
    }
    if ranks > 1:
        # Both directions, as vendors state it.
        found |= {"--interconnect": f"{2 * bandwidth / 1e9:.2f}GBps", "--latency-us": f"{1e6 * latency:.0f}"}
    if dist.get_rank() == 0:
        print("--device cpu", *(f"{name} {text}" for name, text in found.items()))
    dist.destroy_process_group()


class Sum(torch.autograd.Function):
    """Sums a tensor over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.mark_dirty(tensor)
        dist.all_reduce(tensor, group=group)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


class SumOfGradients(torch.autograd.Function):
    """Sums a tensor's gradient over ranks."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total, None


class Block(nn.Module):
    """A layer of a transformer, or what one of `tensor` ranks has of it; sums over `group` if it is set."""

    def __init__(self, width: int, heads: int, tensor: int) -> None:
        super().__init__()
        self.group: dist.ProcessGroup | None = None
        self.heads = heads // tensor
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.into = nn.Linear(width, 3 * width // tensor)
        self.out = nn.Linear(width // tensor, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width // tensor), nn.GELU(), nn.Linear(4 * width // tensor, width)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        normed = self.before(self.norms[0](inputs))
        split = self.into(normed).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*split, dropout_p=0.1)
        inputs = inputs + nn.functional.dropout(self.after(self.out(mixed.transpose(1, 2).flatten(-2))), 0.1)
        normed = self.before(self.norms[1](inputs))
        return inputs + nn.functional.dropout(self.after(self.mlp(normed)), 0.1)

    def before(self, tensor: Tensor) -> Tensor:
        return tensor if self.group is None else SumOfGradients.apply(tensor, self.group)

    def after(self, tensor: Tensor) -> Tensor:
        return tensor if self.group is None else Sum.apply(tensor, self.group)


def tiny_block(options: argparse.Namespace) -> Block:
    """A block whose operators take no longer than their start."""
    return Block(8 * options.heads, options.heads, 1)


def training(block: Block, shape: tuple[int, int], dtype: torch.dtype = torch.float32) -> Callable[[], None]:
    """Forward and backward of a block for `shape` rows and tokens."""
    block = block.to(dtype)
    inputs = torch.randn(*shape, block.norms[0].normalized_shape[0], dtype=dtype, requires_grad=True)

    def step() -> None:
        block.zero_grad()
        block(inputs).sum().backward()

    return step


def operations(options: argparse.Namespace) -> float:
    """Operations of forward and backward of a block, counted as `smdp plan` does."""
    width, sequence, tokens = options.width, options.sequence, options.rows * options.sequence
    return 3 * (2 * tokens * 12 * width**2 + 4 * tokens * sequence * width) / options.tensor


def block_and_sum(options: argparse.Namespace, bandwidth: float) -> tuple[float, float]:
    """Seconds of a block, and of each of the four sums of its activations, besides their bytes.

    Between operators, which use caches and cores, a sum takes several times as long as sums alone.
    """
    dtype = torch.bfloat16 if options.bf16 else torch.float32
    block = Block(options.width, options.heads, options.tensor)
    alone = training(block, (options.rows, options.sequence), dtype)
    ranks = dist.get_world_size()
    size = options.tensor if options.tensor > 1 else ranks
    if size == 1:
        return seconds(alone), 0.0
    groups = [dist.new_group(list(range(first, first + size))) for first in range(0, ranks, size)]

    def summing() -> None:
        block.group = groups[dist.get_rank() // size]
        alone()
        block.group = None

    without, each = in_turn([alone, summing], runs=25)
    each = (each - without) / 4
    sent = dtype.itemsize * options.rows * options.sequence * options.width * 2 * (size - 1) / size
    return without, max(0.0, each - sent / bandwidth)


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
    return in_turn([work], clock, of, runs)[0]


def in_turn(
    works: list[Callable[[], object]],
    clock: Callable[[], float] = time.thread_time,
    of: Callable[[list[float]], float] = statistics.median,
    runs: int = 9,
) -> list[float]:
    """Like seconds(), for works of which the differences count: speeds change meanwhile."""
    times: list[list[float]] = [[] for _ in works]
    for run in range(-2, runs):
        for work, taken in zip(works, times, strict=True):
            dist.barrier()
            begin = clock()
            work()
            if run >= 0:
                taken.append(clock() - begin)
    found = torch.tensor([of(taken) for taken in times])
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return found.tolist()


if __name__ == "__main__":
    main()
