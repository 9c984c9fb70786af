"""A language model on one CPU in 32 bits, under autocast, and with MixedPrecision: time and memory of a step.

Each kind trains in a process of its own, with one thread. The processes take turns, and the fastest step of
each counts. Times are those of the processor, which other work on the machine changes little.

    python tests/benchmarks/mixed_precision.py
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

KINDS = ("fp32", "autocast bf16", "bf16", "bf16, fp32 sums", "fp16")
VOCABULARY, LENGTH = 8192, 128


def of_command_line() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--fp16", action="store_true", help="slow without AVX512-FP16")
    return parser.parse_args()


def train(options: argparse.Namespace) -> Iterator[dict[str, float]]:
    """Makes a step whenever a line comes in, and yields its figures."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional

    import smdp.torch

    torch.set_num_threads(1)

    class Block(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, hidden: Tensor) -> Tensor:
            both = self.attention(self.first(hidden)).unflatten(-1, (3, -1, 64)).movedim(-3, 0)
            query, key, value = (each.transpose(1, 2) for each in both)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = hidden + self.out(mixed.transpose(1, 2).flatten(-2))
            return hidden + self.down(functional.gelu(self.up(self.second(hidden)), approximate="tanh"))

    class Model(nn.Module):
        """GPT-2 without dropout, whose head is the transposed embedding."""

        def __init__(self, width: int, blocks: int) -> None:
            super().__init__()
            self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)
            self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
            self.norm = nn.LayerNorm(width)

        def forward(self, tokens: Tensor) -> Tensor:
            hidden = self.words(tokens) + self.places.weight[: tokens.shape[1]]
            for block in self.blocks:
                hidden = block(hidden)
            logits = self.norm(hidden) @ self.words.weight.T
            return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())

    torch.manual_seed(0)
    model = Model(options.width, options.blocks)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    mixed: smdp.torch.MixedPrecision | None = None
    if options.kind not in KINDS[:2]:
        dtype = torch.float16 if options.kind == "fp16" else torch.bfloat16
        scale = 2.0**12 if options.kind == "fp16" else None
        mixed = smdp.torch.MixedPrecision(
            optimizer, model, dtype, loss_scale=scale, accumulate_in_fp32="sums" in options.kind
        )
    tokens = torch.randint(VOCABULARY, (options.batch, LENGTH))
    for _ in sys.stdin:
        started = time.process_time()
        for part in tokens.chunk(options.microbatches):
            with torch.autocast("cpu", torch.bfloat16, enabled=options.kind == "autocast bf16"):
                loss = model(part) / options.microbatches
            if mixed is None:
                loss.backward()
            else:
                mixed.backward(loss)
        updated = time.process_time()
        held = sum(
            each.nbytes + (0 if each.grad is None else each.grad.nbytes) for each in model.parameters()
        )
        if mixed is None:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        else:
            mixed.clip_master_grads(1.0)
            mixed.step()
            mixed.zero_grad()
        yield {
            "step": time.process_time() - started,
            "update": time.process_time() - updated,
            "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "held": held / 2**20,
            "loss": loss.item() * options.microbatches,
        }


def main() -> None:
    """Starts the processes, and prints a table."""
    options = of_command_line()
    if options.kind is not None:
        print("ready", flush=True)
        for figures in train(options):
            print(json.dumps(figures), flush=True)
        return
    given = [*sys.argv[1:]]
    command = [sys.executable, str(Path(__file__).resolve()), *given, "--kind"]
    processes = {
        kind: subprocess.Popen([*command, kind], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for kind in KINDS
        if kind != "fp16" or options.fp16
    }
    best: dict[str, dict[str, float]] = {}
    for process in processes.values():
        assert process.stdout is not None
        process.stdout.readline()
    for number in range(1 + options.steps):
        for kind, process in processes.items():
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            figures = json.loads(process.stdout.readline())
            if number == 0:
                best[kind] = figures
                continue
            times = {key: min(figures[key], best[kind][key]) for key in ("step", "update")}
            best[kind] = {**figures, **times}
    print(
        f"{'':16} {'step s':>7} {'update s':>9} {'peak MiB':>9} {'weights + gradients MiB':>24} {'loss':>8}"
    )
    for kind, figures in best.items():
        print(
            f"{kind:16} {figures['step']:7.3f} {figures['update']:9.3f} {figures['peak']:9.0f}"
            f" {figures['held']:24.1f} {figures['loss']:8.4f}"
        )
    for process in processes.values():
        process.communicate()


if __name__ == "__main__":
    main()
