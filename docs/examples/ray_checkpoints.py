"""Ray Train over smdp with checkpoints: a worker that is lost costs what was trained since the last one.

    python ray_checkpoints.py --workers 2 --epochs 5

Ray starts all workers again, and they go on where the last checkpoint was written.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train import Checkpoint, FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from sklearn.datasets import load_digits
from torch import Tensor, nn

import smdp.torch

GLOBAL_BATCH = 64  # images per step, all workers together


def load_images() -> tuple[Tensor, Tensor]:
    digits = load_digits()
    return torch.from_numpy(digits.data).double() / 16, torch.from_numpy(digits.target).long()


def make_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).double()


def make_optimizer(network: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)


def train_epoch(
    model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int, rank: int = 0, ranks: int = 1
) -> float:
    """Train on this rank's part of every batch, and return the loss over all images."""
    images, labels = load_images()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    for batch in order.split(GLOBAL_BATCH)[:-1]:  # without the last, smaller one
        own = batch[rank::ranks]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[own]), labels[own]).backward()
        optimizer.step()
    with torch.no_grad():
        return float(nn.functional.cross_entropy(model(images), labels))


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """Train in one worker; Ray has called init_process_group."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    network = make_network()
    optimizer = make_optimizer(network)
    first = 0
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            state = torch.load(os.path.join(folder, "state.pt"), weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epochs"]
        if rank == 0:
            print(f"goes on after {first} epochs", flush=True)
    model = smdp.torch.DistributedDataParallel(network)  # or torch's own
    for epoch in range(first, config["epochs"]):
        loss = train_epoch(model, optimizer, epoch, rank, ranks)
        with tempfile.TemporaryDirectory() as folder:
            written = None
            if rank == 0:
                print(f"epochs={epoch + 1} loss={loss:.6f}", flush=True)
                state = {
                    "network": network.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "epochs": epoch + 1,
                }
                torch.save(state, os.path.join(folder, "state.pt"))
                written = Checkpoint.from_directory(folder)
            ray.train.report({"loss": loss}, checkpoint=written)  # all workers call it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--max-failures", type=int, default=1, help="restarts; default: %(default)s")
    parser.add_argument("--storage", default=None, help="folder that all nodes see; default: ~/ray_results")
    arguments = parser.parse_args()
    trainer = TorchTrainer(
        train_loop_per_worker,
        train_loop_config={"epochs": arguments.epochs},
        torch_config=TorchConfig(backend="smdp"),
        scaling_config=ScalingConfig(num_workers=arguments.workers),
        run_config=RunConfig(
            storage_path=arguments.storage,
            failure_config=FailureConfig(max_failures=arguments.max_failures),
        ),
    )
    trainer.fit()


if __name__ == "__main__":
    main()
