"""A Trainer's step over gloo and over smdp, and what of it is communication.

    python tests/benchmarks/transformers_step.py

Contenders, each two processes: transformers' own Trainer over gloo, the Trainer of smdp with DataParallel,
and the same ranks that keep their gradients to themselves. All live at once and take turns of a few steps:
what slows the machine for minutes slows all of them. Then, on a model that computes nearly nothing, what the
plugin adds to steps of transformers' Trainer with smdp's model class.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
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
        self._connection.settimeout(None)  # it ends with main()
        self._steps = steps
        self._times: list[float] = []

    def begin_step(self, measure: Callable[[], list[float]]) -> None:
        """Take the time; where a turn is over, measure something else, tell both, and wait for the next."""
        if self._times:
            self._times.append(time.perf_counter())
            if len(self._times) <= self._steps:
                return
            # Without the first step of a turn, which finds the caches full of another's data.
            mean = (self._times[-1] - self._times[1]) / (self._steps - 1)
            self._connection.sendall(json.dumps([mean, *measure()]).encode() + b"\n")
        if not self._connection.recv(1):
            raise SystemExit("the benchmark has ended")
        self._times = [time.perf_counter()]


def worker(contender: str, port: int, steps: int, rounds: int) -> None:
    import torch
    import transformers
    from text_model import make_model, make_rows

    import smdp.transformers

    torch.set_num_threads(1)
    turns: list[Turns] = []

    class Clock(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            if not turns:
                turns.append(Turns(port, steps))
            turns[0].begin_step(lambda: communication(model) if contender in ("gloo", "smdp") else [])

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


def communication(model: Any) -> list[float]:
    """What reducing all gradients at once takes."""
    import torch
    import torch.distributed as dist

    whole = torch.ones(sum(parameter.numel() for parameter in model.parameters()))
    spans = []
    for _ in range(4):
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
        self._name = name
        self._process = subprocess.Popen(command, env=variables, stdout=subprocess.DEVNULL)
        self._ranks = [self._connection(listener) for _ in range(2)]
        self._reports = [rank.makefile() for rank in self._ranks]
        self._turns: list[float] = []
        self._communication: list[float] = []

    def _connection(self, listener: socket.socket) -> socket.socket:
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if select.select([listener], [], [], 0.5)[0]:
                return listener.accept()[0]
        raise SystemExit(f"{self._name} has not started")

    def turn(self) -> None:
        """Let both go on, and note what they found."""
        self._go_on()
        lines = [report.readline() for report in self._reports]
        if not all(lines):
            raise SystemExit(f"{self._name} has ended in a turn")
        found = [json.loads(line) for line in lines]
        # Steps of the two begin at different times: only their sum is that of the slower one.
        self._turns.append(1e3 * max(mean for mean, *_ in found))
        self._communication += [1e3 * span for span in found[0][1:]]

    def finish(self) -> None:
        """Let both end."""
        self._go_on()
        if self._process.wait(_PATIENCE_S) != 0:
            raise SystemExit(f"{self._name} has failed at its end")

    def _go_on(self) -> None:
        for rank in self._ranks:
            rank.settimeout(_PATIENCE_S)
            rank.sendall(b"g")

    @property
    def step(self) -> float:
        """Median of its turns, in ms."""
        return statistics.median(self._turns)

    @property
    def communication(self) -> float:
        """Median of its all_reduce, in ms."""
        return statistics.median(self._communication)


def compete(names: Sequence[str], steps: int, rounds: int) -> list[Contender]:
    """Let contenders take turns, each after every other one as often."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        contenders = [Contender(name, listener, steps, rounds) for name in names]
        for number in range(rounds):
            first = number % len(names)
            order = contenders[first:] + contenders[:first]
            for contender in order[:: -1 if number // len(names) % 2 else 1]:
                contender.turn()
        for contender in contenders:
            contender.finish()
    return contenders


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=6, help="steps of a turn, at least 2")
    parser.add_argument("--rounds", type=int, default=12, help="turns of each contender")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.steps < 2 or options.rounds < 1:
        parser.error("--steps must be at least 2, --rounds at least 1")
    if options.worker:
        worker(options.worker, options.port, options.steps, options.rounds)
        return
    gloo, smdp, alone = compete(("gloo", "smdp", "alone"), options.steps, options.rounds)
    plain, overhead = compete(("plain", "overhead"), 50, options.rounds)
    print(f"medians of {options.rounds} turns of {options.steps} steps, without the first of each")
    print(
        f"step: gloo {gloo.step:.1f} ms, smdp {smdp.step:.1f} ms, without communication {alone.step:.1f} ms"
    )
    print(f"communication alone: gloo {gloo.communication:.1f} ms, smdp {smdp.communication:.1f} ms")
    shorter, saved = gloo.step - smdp.step, gloo.communication - smdp.communication
    print(f"smdp's step is {shorter:.1f} ms shorter, its communication alone {saved:.1f} ms shorter")
    added = overhead.step - plain.step
    print(f"the plugin adds {1e3 * added:.0f} us to a step: {100 * added / smdp.step:.2f} % of the one above")


if __name__ == "__main__":
    main()
