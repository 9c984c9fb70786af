"""Divides tiny models of many families by smdp and by transformers, and trains them beside one process.

    smdp run -n 2 tests/benchmarks/tensor_parallel_families.py
    smdp run -n 2 tests/benchmarks/tensor_parallel_families.py --by transformers --dropout 0

A model of transformers' own way is loaded from its files with DistributedConfig(tp_size=...), over gloo. Each
step is two microbatches, which both models get with the same seed.
"""

from __future__ import annotations

import argparse
import copy
import sys
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import transformers
from transformers.distributed import DistributedConfig

import smdp.torch

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "transformers"))
from beside_one_process import farthest
from tensor_parallel_models import DROPOUT, FAMILIES, MORE, made


def by_smdp(alone: Any) -> Any:
    """Divides a copy of a model by smdp."""
    return smdp.torch.tensor_parallel(copy.deepcopy(alone), dist.get_world_size())


def by_transformers(alone: Any) -> Any:
    """Divides a copy of a model by its own plan."""
    with tempfile.TemporaryDirectory() as own:
        folders = [own]
        dist.broadcast_object_list(folders)
        alone.save_pretrained(folders[0])  # rank 0 writes
        dist.barrier()
        config = DistributedConfig(tp_size=dist.get_world_size())
        try:
            return type(alone).from_pretrained(folders[0], distributed_config=config).train()
        finally:
            dist.barrier()


def result(divide: Callable[[Any], Any], family: str, dropout: float, steps: int) -> str:
    """Returns the largest differences of a loss and of a gradient, or why there are none."""
    torch.manual_seed(0)
    alone = made(family, dropout)
    try:
        model = divide(alone)
    except Exception as error:  # noqa: BLE001 - is the result
        return f"refused: {_first_line(error)}"
    try:
        far = torch.tensor(farthest(model, alone, family, steps))
        dist.all_reduce(far, dist.ReduceOp.MAX)
    except Exception as error:  # noqa: BLE001 - is the result
        return f"failed in training: {_first_line(error)}"
    return "{:.1e}, {:.1e}".format(*far.tolist())


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0][:160]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--by", choices=("smdp", "transformers"), default="smdp")
    parser.add_argument("--dropout", type=float, default=DROPOUT)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--families", nargs="*", default=[*FAMILIES, *MORE])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    backend, divide = ("smdp", by_smdp) if arguments.by == "smdp" else ("gloo", by_transformers)
    dist.init_process_group(backend, timeout=timedelta(seconds=60))
    for family in arguments.families:
        found = result(divide, family, arguments.dropout, arguments.steps)
        if dist.get_rank() == 0:
            print(f"{family}: {found}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
