"""What recomputation keeps and costs: GPT-2 with random weights, in one process or a pipeline of two ranks.

Kept are the bytes of live tensors at the end of forward, and the peak is the most during a step, both less
what is there before. For a pipeline, only the peak of rank 0 counts. Seconds are of the processor, the least
of some steps.

    python tests/benchmarks/recomputed_activations.py
    smdp run -n 2 tests/benchmarks/recomputed_activations.py --schedule 1f1b
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel

import smdp.torch

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "torch"))
from live_tensors import LiveTensors

POLICIES = (None, "each", "group_2", "contiguous", "selective", 0.5)
WORDS, LENGTH = 1000, 128


class Watched(torch.nn.Module):
    """Follows live tensors on the thread that runs a microbatch, and in its backward."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model
        self.live: LiveTensors | None = None

    def forward(self, **batch: Any) -> Any:
        if self.live is None:
            return self.model(**batch).loss
        with self.live:
            return self.model(**batch).loss


def made(layers: int, width: int) -> torch.nn.Module:
    torch.manual_seed(0)
    config = GPT2Config(
        n_layer=layers, n_embd=width, n_head=4, vocab_size=WORDS, n_positions=LENGTH, use_cache=False
    )
    return Watched(GPT2LMHeadModel(config).train())


def least(step: Callable[[], Any], repeats: int) -> float:
    found = []
    for _ in range(repeats):
        begin = time.process_time()
        step()
        found.append(time.process_time() - begin)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--samples", type=int, default=4, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--schedule", default="1f1b")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="the policies, by comma; all by default")
    args = parser.parse_args()
    torch.set_num_threads(1)
    is_pipeline = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_pipeline:
        dist.init_process_group("smdp")
    tokens = torch.randint(
        WORDS,
        (args.samples * (args.microbatches if is_pipeline else 1), LENGTH),
        generator=torch.Generator().manual_seed(1),
    )
    batch = {"input_ids": tokens, "labels": tokens}
    only = args.only.split(",") if args.only else list(map(str, POLICIES))
    for policy in filter(lambda each: str(each) in only, POLICIES):
        model: Any = made(args.layers, args.width)
        kept = [0]
        if is_pipeline:
            pipe = smdp.torch.pipeline(model, 2, args.microbatches, args.schedule, batch, recompute=policy)

            def step(pipe: Any = pipe) -> None:
                pipe.train_step(batch, lambda loss: loss)

        else:
            if policy is not None:
                smdp.torch.checkpoint_activations(model, policy)

            def step(model: Any = model, kept: list[int] = kept) -> None:
                loss = model(**batch)
                if model.live is not None:
                    kept[0] = model.live.total
                loss.backward()

        for _ in range(3):
            step()
        seconds = least(step, args.repeats)
        here = [tensor for tensor in (*model.parameters(), *model.buffers()) if not tensor.is_meta]
        here += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        live = model.live = LiveTensors([*here, tokens])
        before = live.total
        if is_pipeline:
            with live:
                step()
        else:
            step()
            kept[0] -= before
            model.live = None
            live = LiveTensors([*here, tokens])
            with live:
                step()
        if not is_pipeline or dist.get_rank() == 0:
            print(
                f"{policy!s:>10}"
                + (f"  kept {kept[0] / 2**20:7.2f} MiB" if not is_pipeline else "")
                + f"  peak {(live.peak - before) / 2**20:7.2f} MiB  {1e3 * seconds:7.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
