"""What the Trainer with ModelParallel adds to a step, against a loop of one's own over pipe.train_step().

    smdp run -n 2 tests/benchmarks/transformers_model_parallel_step.py

Both take turns, step by step, in the same processes, on the same split model and the same batches. A step is
all from the batch to the changed parameters: forward, backward, clipping, optimizer, schedule of the learning
rate; of the Trainer also its callbacks and counts.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers

import smdp.torch
from smdp.transformers import ModelParallel, Plugin, Trainer, TrainingArguments

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
from text_model import make_model, make_rows

# Signatures are recorded, and memory is laid out.
_FIRST = 4


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


def _since(start: tuple[float, float]) -> tuple[float, float]:
    now = _now()
    return now[0] - start[0], now[1] - start[1]


class Batches(Plugin):
    """Keeps the batch of the step."""

    inputs: Any = None

    def run_step(self, trainer: Any, run: Any, model: Any, inputs: Any, items: Any) -> Any:
        self.inputs = inputs
        return run(model, inputs, items)


class Turns(transformers.TrainerCallback):
    """Times the Trainer's step, then one by hand."""

    def __init__(self, batches: Batches) -> None:
        self.batches = batches
        self.trainers: list[tuple[float, float]] = []
        self.own: list[tuple[float, float]] = []

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        dist.barrier()
        self._start = _now()

    def on_step_end(self, args: Any, state: Any, control: Any, **known: Any) -> None:
        dist.barrier()
        self.trainers.append(_since(self._start))
        pipe = self.trainer.model_wrapped
        start = _now()
        pipe.train_step(self.batches.inputs)
        smdp.torch.clip_grad_norm_(pipe.parameters(), args.max_grad_norm)
        known["optimizer"].optimizer.step()
        pipe.zero_grad()
        dist.barrier()
        self.own.append(_since(start))

    trainer: Any = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--tiny", action="store_true", help="a model that computes nearly nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, _ = make_rows()
    batches = Batches()
    turns = Turns(batches)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder,
            max_steps=options.steps,
            per_device_train_batch_size=options.rows,
            report_to=[],
            save_strategy="no",
            logging_steps=10_000,
            disable_tqdm=True,
            use_cpu=True,
        )
        plugins = [ModelParallel(stages=2, microbatches=options.microbatches), batches]
        model = make_model()
        if options.tiny:
            shape = {"n_embd": 8, "n_layer": 6, "n_head": 1, "n_positions": 128, "vocab_size": 256}
            model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
        turns.trainer = Trainer(model, args, train_dataset=rows, callbacks=[turns], plugins=plugins)
        turns.trainer.train()
    if dist.get_rank() == 0:
        print(f"{options.rows} rows in {options.microbatches} microbatches; medians of steps in turn")
        for index, what in enumerate(("on the clock", "of CPU time")):
            theirs = [step[index] for step in turns.trainers[_FIRST:]]
            own = [step[index] for step in turns.own[_FIRST:]]
            added = statistics.median(one - other for one, other in zip(theirs, own, strict=True))
            step = statistics.median(own)
            print(
                f"{what}: by hand {1e3 * step:.1f} ms, Trainer {1e3 * statistics.median(theirs):.1f} ms;"
                f" added {1e3 * added:.2f} ms, {100 * added / step:.2f} %"
            )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
