"""Throughput of a pipeline on two ranks beside one process and torch.distributed.pipelining, one thread each.

Start it on two ranks: smdp run -n 2 tests/benchmarks/pipeline_training.py
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn import functional

import smdp.torch


class Block(nn.Module):
    """GPT-2's: attention and a layer four times as wide, each behind a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        size, length, width = hidden.shape
        heads = self.query_key_value(self.attention_norm(hidden)).view(size, length, 3, width // 64, 64)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.projection(mixed.transpose(1, 2).reshape(size, length, width))
        wide = functional.gelu(self.wide(self.norm(hidden)), approximate="tanh")
        return hidden + self.narrow(wide)  # type: ignore[no-any-return]


class Language(nn.Module):
    """GPT-2, with a head of its own: torch's stages cannot share a weight."""

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__()
        self.words = nn.Embedding(options.words, options.width)
        self.places = nn.Embedding(options.length, options.width)
        self.blocks = nn.ModuleList(Block(options.width) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)
        self.head = nn.Linear(options.width, options.words, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


class First(nn.Module):
    """The part of a model before a block, as torch.distributed.pipelining wants it: a module."""

    def __init__(self, model: Language, cut: int) -> None:
        super().__init__()
        self.words, self.places, self.blocks = model.words, model.places, model.blocks[:cut]

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.words(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            hidden = block(hidden)
        return hidden


class Last(nn.Module):
    """The rest."""

    def __init__(self, model: Language, cut: int) -> None:
        super().__init__()
        self.blocks, self.norm, self.head = model.blocks[cut:], model.norm, model.head

    def forward(self, hidden: Tensor) -> Tensor:
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))  # type: ignore[no-any-return]


def loss_of(output: Tensor, ids: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), ids.flatten())


def timed(step: Callable[[], object], repeats: int) -> float:
    """Give the median milliseconds of a step, from the first rank's begin to the last one's end."""
    found = []
    for _ in range(repeats):
        dist.barrier()
        begin = time.perf_counter()
        step()
        dist.barrier()
        found.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(found)


def with_reads(output: Tensor, microbatch: Tensor) -> Tensor:
    loss = loss_of(output, microbatch)
    loss.item()
    return loss


def measure(options: argparse.Namespace) -> None:
    rank = dist.get_rank()
    torch.manual_seed(1)
    ids = torch.randint(0, options.words, (options.microbatches * options.size, options.length))
    torch.manual_seed(0)
    whole = Language(options)
    torch.manual_seed(0)
    split = Language(options)
    pipe = smdp.torch.pipeline(
        split,
        stages=2,
        microbatches=options.microbatches,
        schedule=options.schedule,
        example_inputs=ids,
        loss_fn=loss_of,
    )
    cut = sum(stages[0] == 0 for name, stages in pipe.split.stages.items() if name.startswith("blocks."))
    gloo = dist.new_group(backend="gloo")
    part = (First if rank == 0 else Last)(Language(options), cut)
    stage = PipelineStage(part, rank, 2, torch.device("cpu"), group=gloo)
    peer = Schedule1F1B(stage, options.microbatches, loss_fn=loss_of)

    def alone() -> None:
        if rank == 0:
            for microbatch in ids.chunk(options.microbatches):
                (loss_of(whole(microbatch), microbatch) / options.microbatches).backward()

    def torchs() -> None:
        if rank == 0:
            peer.step(ids)
        else:
            peer.step(target=ids)

    steps: dict[str, Callable[[], object]] = {
        "one process": alone,
        "smdp": lambda: pipe.train_step(ids, loss_of),
        "smdp, .item() in the loss": lambda: pipe.train_step(ids, with_reads),
        "torch.distributed.pipelining": torchs,
    }
    found: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        step()
    for _ in range(options.rounds):
        for name, step in steps.items():
            found[name].append(timed(step, options.repeats))
    if rank == 0:
        parameters = sum(parameter.numel() for parameter in whole.parameters())
        predicted = 1e3 * pipe.split.partition.step
        medians = {name: statistics.median(times) for name, times in found.items()}
        print(
            f"{parameters / 1e6:.1f} M parameters, {options.microbatches} microbatches of {options.size} x "
            f"{options.length}, {options.schedule}, cut before block {cut}"
        )
        for name, median in medians.items():
            ratio = medians["one process"] / median
            spread = f"{min(found[name]):.0f}-{max(found[name]):.0f}"
            print(f"{name:32s} {median:8.1f} ms ({spread})  {ratio:.2f}x one process")
        print(f"planned {predicted:.1f} ms, measured {medians['smdp']:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--size", type=int, default=2, help="samples of a microbatch")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    measure(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
