"""Run a training script, unchanged, on the workers of Ray Train over smdp.

python ray_train.py --workers 2 train.py --epochs 3
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from typing import Any

from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """Be the script: Ray calls this in every worker, after it has called init_process_group."""
    sys.argv = [config["script"], *config["arguments"]]
    runpy.run_path(config["script"], run_name="__main__")


def main() -> None:
    """Start the workers, and start all of them again if one is lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--max-failures", type=int, default=1, help="restarts; default: %(default)s")
    parser.add_argument("script", help="a path that all nodes see")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={
            "script": os.path.abspath(arguments.script),
            "arguments": arguments.arguments,
        },
        torch_config=TorchConfig(backend="smdp"),
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=arguments.max_failures)),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
