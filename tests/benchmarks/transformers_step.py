"""A Trainer's step over gloo and over smdp, and what of it is communication.

    python tests/benchmarks/transformers_step.py

Contenders in turn, each two processes: transformers' own Trainer over gloo, the Trainer of smdp with
DataParallel, and the same ranks that keep their gradients to themselves. Then, on a model that computes
nearly nothing, what the plugin adds to steps of transformers' Trainer with smdp's model class.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))


def worker(contender: str, steps: int) -> None:
    import torch
    import torch.distributed as dist
    import transformers
    from text_model import make_model, make_rows

    import smdp.transformers

    torch.set_num_threads(1)
    times: list[float] = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            times.append(time.perf_counter())

    options = {"max_steps": steps, "report_to": [], "save_strategy": "no", "logging_steps": 10_000}
    options |= {"disable_tqdm": True, "seed": 1, "per_device_train_batch_size": 8, "use_cpu": True}
    model: torch.nn.Module = make_model()
    rows, _ = make_rows()
    if contender in ("overhead", "plain"):
        options["per_device_train_batch_size"] = 1
        shape = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 8, "vocab_size": 256}
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape))
        rows = [{"input_ids": row["input_ids"][:8], "labels": row["labels"][:8]} for row in rows]
    with tempfile.TemporaryDirectory() as folder:
        if contender == "gloo":
            args = transformers.TrainingArguments(folder, **options)
            trainer = transformers.Trainer(model, args, train_dataset=rows, callbacks=[Clock()])
        elif contender == "plain":
            args = smdp.transformers.TrainingArguments(folder, **options)
            torch.nn.parallel.DistributedDataParallel = smdp.torch.DistributedDataParallel  # type: ignore
            trainer = transformers.Trainer(model, args, train_dataset=rows, callbacks=[Clock()])
        else:
            args = smdp.transformers.TrainingArguments(folder, **options)
            plugins = [] if contender == "alone" else [smdp.transformers.DataParallel()]
            trainer = smdp.transformers.Trainer(
                model, args, train_dataset=rows, callbacks=[Clock()], plugins=plugins
            )
        if contender == "alone":
            step = trainer.training_step

            def quiet(module: Any, *args: Any, **kwargs: Any) -> Any:
                with module.no_sync():
                    return step(module, *args, **kwargs)

            trainer.training_step = quiet
        trainer.train()
    spans = [b - a for a, b in itertools.pairwise(times[3:])]
    result = {"step": 1e3 * statistics.median(spans)}
    if contender not in ("plain", "overhead"):
        gradients = [torch.ones(parameter.numel()) for parameter in model.parameters()]
        whole = torch.cat(gradients)
        spans = []
        for _ in range(20):
            dist.barrier()
            start = time.perf_counter()
            dist.all_reduce(whole)
            spans.append(time.perf_counter() - start)
        result["communication"] = 1e3 * statistics.median(spans)
        result["megabytes"] = 4e-6 * whole.numel()
        dist.barrier()
    if os.environ["RANK"] == "0":
        print("RESULT " + json.dumps(result), flush=True)


def launch(contender: str, steps: int) -> dict[str, float]:
    own = [__file__, "--worker", contender, "--steps", str(steps)]
    command = [sys.executable, "-m", "smdp", "run", "-n", "2", *own]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    output = subprocess.run(
        command, check=True, capture_output=True, text=True, env=variables, timeout=200
    ).stdout
    result: dict[str, float] = json.loads(output.split("RESULT ", 1)[1].splitlines()[0])
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.steps)
        return
    results: dict[str, list[dict[str, float]]] = {name: [] for name in ("gloo", "smdp", "alone")}
    overhead: dict[str, list[float]] = {"plain": [], "overhead": []}
    for _ in range(options.rounds):
        for name, found in results.items():
            found.append(launch(name, options.steps))
        for name, steps in overhead.items():
            steps.append(launch(name, 500)["step"])

    def median(name: str, what: str) -> float:
        return statistics.median(one[what] for one in results[name])

    gloo, smdp, alone = (median(name, "step") for name in results)
    their, our = median("gloo", "communication"), median("smdp", "communication")
    print(f"{results['smdp'][0]['megabytes']:.1f} MB of gradients; medians of {options.rounds} rounds")
    print(f"step: gloo {gloo:.1f} ms, smdp {smdp:.1f} ms, without communication {alone:.1f} ms")
    print(f"communication alone: gloo {their:.1f} ms, smdp {our:.1f} ms")
    limit = gloo - 0.8 * (their - our)
    print(f"gloo's step less 0.8 of the difference: {limit:.1f} ms ({'met' if smdp <= limit else 'missed'})")
    added = statistics.median(overhead["overhead"]) - statistics.median(overhead["plain"])
    print(f"the plugin adds {1e3 * added:.0f} us to a step: {100 * added / smdp:.2f} % of the one above")
    return 0 if smdp <= limit and added < 0.01 * smdp else 1


if __name__ == "__main__":
    sys.exit(main())
