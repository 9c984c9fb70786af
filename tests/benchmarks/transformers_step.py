"""A Trainer's step over gloo and over smdp, and what of it is communication.

    python tests/benchmarks/transformers_step.py

Contenders, each two processes: transformers' own Trainer over gloo, the Trainer of smdp with DataParallel,
and the same ranks that keep their gradients to themselves. All live at once and take turns of a few steps:
what slows the machine for minutes slows all of them. Then, on a model that computes nearly nothing, what the
plugin adds to steps of transformers' Trainer with smdp's model class.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))

# For a contender to start, or to take its turn.
_PATIENCE_S = 300.0


class Turns:
    """A rank's side: it goes on when main() says so.

    Args:
        port: Where main() listens.
        steps: A turn has so many.
    """

    def __init__(self, port: int, steps: int) -> None:
        self._connection = socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_S)
        self._steps = steps
        self._times: list[float] = []

    def begin_step(self) -> None:
        """Take the time, and wait where a turn is over."""
        self._times.append(time.perf_counter())
        if len(self._times) > self._steps:
            # The first step of a turn finds the caches full of another's data.
            self.end([b - a for a, b in itertools.pairwise(self._times[1:])])
        if not self._times:
            self.wait()
            self._times.append(time.perf_counter())

    def wait(self) -> None:
        """Until it is this rank's turn."""
        if not self._connection.recv(1):
            raise SystemExit("the benchmark has ended")

    def end(self, result: Any) -> None:
        """Say what the turn has found."""
        self._times.clear()
        self._connection.sendall(json.dumps(result).encode() + b"\n")


def worker(contender: str, port: int, steps: int, rounds: int) -> None:
    import torch
    import transformers
    from text_model import make_model, make_rows

    import smdp.transformers

    torch.set_num_threads(1)
    turns: list[Turns] = []

    class Clock(transformers.TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            turns.append(Turns(port, steps))
            turns[0].wait()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns[0].begin_step()

    options = {
        "max_steps": steps * rounds + 1,
        "report_to": [],
        "save_strategy": "no",
        "logging_steps": 10_000,
    }
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
    turns[0].end(communication(model) if contender in ("gloo", "smdp") else [])


def communication(model: Any) -> list[float]:
    """What reducing all gradients at once takes."""
    import torch
    import torch.distributed as dist

    whole = torch.ones(sum(parameter.numel() for parameter in model.parameters()))
    spans = []
    for _ in range(21):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(whole)
        spans.append(time.perf_counter() - start)
    return spans[1:]


class Contender:
    """main()'s side: two ranks that wait for their turn.

    Args:
        name: Of worker().
        listener: Where they report.
        steps: A turn has so many.
        rounds: Number of turns.
    """

    def __init__(self, name: str, listener: socket.socket, steps: int, rounds: int) -> None:
        own = ["--worker", name, "--port", str(listener.getsockname()[1])]
        own += ["--steps", str(steps), "--rounds", str(rounds)]
        command = [sys.executable, "-m", "smdp", "run", "-n", "2", __file__, *own]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
        self._ranks = [listener.accept()[0] for _ in range(2)]
        self._reports = [rank.makefile() for rank in self._ranks]
        self.spans: list[float] = []

    def turn(self) -> list[float]:
        """Let both go on; what the slower one needs is what a step takes."""
        for rank in self._ranks:
            rank.settimeout(_PATIENCE_S)
            rank.sendall(b"g")
        found = [json.loads(report.readline()) for report in self._reports]
        return [1e3 * max(both) for both in zip(*found, strict=True)]

    def finish(self) -> list[float]:
        """Let both end."""
        spans = self.turn()
        self._process.wait(_PATIENCE_S)
        return spans


def compete(names: Sequence[str], steps: int, rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """The median of a contender's steps, and what it measured at its end, both in ms."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(_PATIENCE_S)
        contenders = {name: Contender(name, listener, steps, rounds) for name in names}
        for number in range(rounds):
            for contender in list(contenders.values())[:: -1 if number % 2 else 1]:
                contender.spans += contender.turn()
        last = {name: contender.finish() for name, contender in contenders.items()}
    return {name: statistics.median(contender.spans) for name, contender in contenders.items()}, last


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="steps of a turn")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each contender")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.port, options.steps, options.rounds)
        return 0
    step, last = compete(("gloo", "smdp", "alone"), options.steps, options.rounds)
    tiny, _ = compete(("plain", "overhead"), 50, options.rounds)
    their, our = (statistics.median(last[name]) for name in ("gloo", "smdp"))
    print(f"medians of {options.rounds} turns of {options.steps} steps, without the first of each")
    print(
        f"step: gloo {step['gloo']:.1f} ms, smdp {step['smdp']:.1f} ms, without communication"
        f" {step['alone']:.1f} ms"
    )
    print(f"communication alone: gloo {their:.1f} ms, smdp {our:.1f} ms")
    limit = step["gloo"] - 0.8 * (their - our)
    is_met = step["smdp"] <= limit
    print(f"gloo's step less 0.8 of the difference: {limit:.1f} ms ({'met' if is_met else 'missed'})")
    added = tiny["overhead"] - tiny["plain"]
    print(
        f"the plugin adds {1e3 * added:.0f} us to a step: {100 * added / step['smdp']:.2f} % of the one above"
    )
    return 0 if is_met and added < 0.01 * step["smdp"] else 1


if __name__ == "__main__":
    sys.exit(main())
