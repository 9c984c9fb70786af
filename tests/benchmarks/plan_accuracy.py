"""Peak memory and step time that `smdp plan` predicts, beside those of the layouts on this host's cores.

    python tests/benchmarks/plan_accuracy.py

Trains a small GPT-2 in six layouts by the Python that `smdp plan --emit python` prints. Memory is the most
that the fullest rank holds in a step, less what it held when it had only imported its libraries, without
files that are mapped into memory. glibc returns freed memory for it; "kept" is the same with its defaults.
Times are medians of steps. docs/examples/cpu_speed.py measures the cores before.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from smdp import memory
from smdp.plan import Candidate, Cluster, Option, plan, snippet

CORES = len(os.sched_getaffinity(0))
SPEED = Path(__file__).resolve().parents[2] / "docs" / "examples" / "cpu_speed.py"
BATCH, SEQUENCE = 8, 64
CONFIG = {
    "model_type": "gpt2",
    "n_layer": 8,
    "n_embd": 384,
    "n_head": 6,
    "n_positions": SEQUENCE,
    "vocab_size": 2048,
    "activation_function": "gelu",
}
_MICRO: dict[str, Any] = {"microbatches": 4, "microbatch_size": 2}
LAYOUTS: dict[str, dict[str, Any]] = {
    "DDP": {"data": 2, "microbatch_size": 4},
    "DDP, sharded optimizer": {"data": 2, "microbatch_size": 4, "sharding": "zero1"},
    "pipeline of 2": {"pipeline": 2, **_MICRO},
    "pipeline of 2, recompute each": {"pipeline": 2, **_MICRO, "checkpointing": "each"},
    "tensor 2": {"tensor": 2, "microbatch_size": 8},
    "pipeline of 2 x tensor 2": {"pipeline": 2, "tensor": 2, **_MICRO},
}
# glibc then returns the memory of each freed tensor, which it otherwise keeps for later ones.
RETURNED = {"MALLOC_MMAP_THRESHOLD_": "65536"}
_WARM, _STEPS = 3, 9


def candidate(layout: dict[str, Any]) -> Candidate:
    sizes = {"pipeline": 1, "tensor": 1, "data": 1, "microbatches": 1, "precision": "fp32"}
    return Candidate(**{**sizes, **layout})


def cluster(ranks: int, speed: dict[str, float]) -> Cluster:
    return Cluster(ranks_per_host=ranks, cores_per_host=CORES, efficiency=1.0, **speed)


def option(one: Candidate, machines: Cluster) -> Option:
    """Returns the layout as the search finds it."""
    found = plan(
        memory.read_config(CONFIG),
        machines,
        batch=BATCH,
        sequence=SEQUENCE,
        precision="fp32",
        simulated=1 << 20,
    )
    return next(each for each in found.options if each.candidate == one)


def measured_speed(one: Candidate, ranks: int) -> dict[str, float]:
    """Returns the speeds of a core and between ranks, from the example."""
    shape = {"width": CONFIG["n_embd"], "heads": CONFIG["n_head"], "sequence": SEQUENCE}
    shape |= {"rows": one.microbatch_size, "tensor": one.tensor}
    command = ["smdp", "run", "-n", str(ranks), str(SPEED)]
    command += [f"--{name}={value}" for name, value in shape.items()]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
    found = dict(re.findall(r"--([\w-]+) ([\d.]+)", text))
    return {
        "flops": 1e9 * float(found["gflops"]),
        "memory_bandwidth": 1e9 * float(found["memory-bandwidth"]),
        "interconnect": 1e9 * float(found["interconnect"]) / 2,
        "layer_overhead": 1e-6 * float(found["layer-overhead-us"]),
        "latency": 1e-6 * float(found["latency-us"]),
    }


def held() -> int:
    """Returns the bytes that this process holds, except mapped files."""
    status = Path("/proc/self/status").read_text()
    return 1024 * sum(int(size) for size in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+)", status))


def most_held() -> int:
    """Returns the most that it has held since /proc/self/clear_refs was written."""
    status = Path("/proc/self/status").read_text()
    most, files = (int(re.findall(rf"{name}:\s+(\d+)", status)[0]) for name in ("VmHWM", "RssFile"))
    return 1024 * (most - files)


def train(name: str, folder: Path) -> None:
    """Is one rank: runs the snippet of a layout, and writes what it has measured."""
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel

    import smdp.torch

    assert smdp.torch.pipeline and smdp.torch.tensor_parallel and smdp.torch.ShardedOptimizer
    torch.set_num_threads(1)
    idle = held()
    one = candidate(LAYOUTS[name])
    rows = one.microbatches * one.microbatch_size
    times: list[float] = []
    worked: list[float] = []

    def make_model() -> Any:
        torch.manual_seed(0)
        shape = {key: value for key, value in CONFIG.items() if key != "model_type"}
        return GPT2LMHeadModel(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))

    def batches() -> Iterator[dict[str, Any]]:
        torch.manual_seed(1)
        tokens = torch.randint(CONFIG["vocab_size"], (rows, SEQUENCE))
        if one.pipeline > 1:
            yield {"input_ids": tokens, "labels": tokens}
        for step in range(-_WARM, _STEPS):
            if step == 0:
                Path("/proc/self/clear_refs").write_text("5")
            dist.barrier()
            begin, used = time.perf_counter(), time.process_time()
            yield {"input_ids": tokens, "labels": tokens}
            if step >= 0:
                times.append(time.perf_counter() - begin)
                worked.append(time.process_time() - used)

    machines = cluster(one.pipeline * one.tensor * one.data, {})
    exec(snippet.python(one, machines), {"make_model": make_model, "batches": batches()})
    result = {
        "held": most_held() - idle,
        "seconds": statistics.median(times),
        "worked": statistics.median(worked),
    }
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(result))
    dist.barrier()
    dist.destroy_process_group()


def measured(name: str, variables: dict[str, str]) -> list[dict[str, float]]:
    """Returns what each rank of a layout has measured."""
    one = candidate(LAYOUTS[name])
    ranks = one.pipeline * one.tensor * one.data
    with tempfile.TemporaryDirectory() as folder:
        command = ["smdp", "run", "-n", str(ranks), __file__, "--train", name, "--folder", folder]
        done = subprocess.run(
            command,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{name}: {done.stdout[-3000:]}{done.stderr[-3000:]}")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(ranks)]


def show(name: str) -> None:
    """Prints a layout's predictions beside what is measured."""
    one = candidate(LAYOUTS[name])
    ranks = one.pipeline * one.tensor * one.data
    speed = measured_speed(one, ranks)
    found = option(one, cluster(ranks, speed))
    exact, usual = measured(name, RETURNED), measured(name, {})
    held, kept = (max(rank["held"] for rank in each) for each in (exact, usual))
    seconds = max(rank["seconds"] for rank in usual)
    worked = sum(rank["worked"] for rank in usual) / min(CORES, ranks)
    sizes = f"{found.peak / 1e6:8.1f}{held / 1e6:9.1f}{found.peak / held - 1:8.1%}{kept / 1e6:9.1f}"
    times = f"{found.seconds * 1e3:8.1f}{seconds * 1e3:9.1f}{found.seconds / seconds - 1:8.1%}"
    overheads = f"{speed['layer_overhead'] * 1e6:9.0f}{speed['latency'] * 1e6:8.0f}"
    of_host = f"{speed['flops'] / 1e9:8.1f}{overheads}"
    print(f"{name:30}{sizes}{times}{worked * 1e3:10.1f}{of_host}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        train(options.train, options.folder)
        return
    print(
        f"{'':30}{'MB':>8}{'measured':>9}{'':8}{'kept':>9}{'ms':>8}{'measured':>9}{'':8}{'processor':>10}"
        f"{'GFLOPS':>8}{'layer us':>9}{'sum us':>8}"
    )
    for name in options.only:
        show(name)


if __name__ == "__main__":
    main()
