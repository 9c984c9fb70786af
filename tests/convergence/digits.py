"""Does compression cost accuracy? Cross-validation on scikit-learn's digits, two ranks that play two hosts.

    smdp run -n 2 tests/convergence/digits.py

Trains a small CNN per wire type, fold and seed, prints the mean accuracies, and fails if one is too far from
that without compression.
"""

from __future__ import annotations

import os
import sys

os.environ["SMDP_HOST_ID"] = f"host{os.environ.get('SMDP_RANK', os.environ.get('RANK', '0'))}"

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import KFold
from torch import Tensor, nn

from smdp.torch import DistributedDataParallel

FOLDS, SEEDS, EPOCHS, BATCH = 5, 3, 30, 32
LEAST = 97.5  # per cent, without compression; 98.2 is usual
# Points of accuracy that a wire type may lose.
ALLOWED = {"none": 0.0, "fp16": 0.3, "bf16": 0.3, "int8": 0.7, "topk": 0.7}


def network() -> nn.Module:
    features = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1)]
    return nn.Sequential(*features, nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(wire: str, seed: int, train: Tensor, test: Tensor, pixels: Tensor, digits: Tensor) -> float:
    torch.manual_seed(seed)
    # top-k carries the momentum itself.
    carried, left = (0.9, 0.0) if wire == "topk" else (0.0, 0.9)
    ddp = DistributedDataParallel(network(), compression=wire, topk_ratio=0.01, topk_momentum=carried)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=left)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=0.05, total_steps=EPOCHS * (len(train) // BATCH), cycle_momentum=False
    )
    rank, size = dist.get_rank(), dist.get_world_size()
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        order = train[torch.randperm(len(train), generator=shuffle)]
        for step in range(len(train) // BATCH):
            rows = order[step * BATCH : (step + 1) * BATCH][rank::size]
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(pixels[rows]), digits[rows]).backward()
            optimizer.step()
            schedule.step()
    with torch.no_grad():
        return 100 * (ddp.module(pixels[test]).argmax(1) == digits[test]).double().mean().item()


def main() -> int:
    torch.set_num_threads(1)
    dist.init_process_group("smdp")
    data = load_digits()
    pixels, digits = torch.from_numpy(data.images).float().unsqueeze(1) / 16, torch.from_numpy(data.target)
    means: dict[str, float] = {}
    for wire in ALLOWED:
        found = []
        for seed in range(SEEDS):
            folds = KFold(FOLDS, shuffle=True, random_state=seed).split(data.images)
            for train, test in folds:
                found.append(accuracy(wire, seed, torch.tensor(train), torch.tensor(test), pixels, digits))
        means[wire] = sum(found) / len(found)
        if dist.get_rank() == 0:
            print(f"{wire:>5}: {means[wire]:.2f} % over {len(found)} trainings", flush=True)
    dist.destroy_process_group()
    bad = [wire for wire, lost in ALLOWED.items() if means[wire] < max(means["none"], LEAST) - lost]
    if bad:
        print(f"too far below none, or {LEAST} %: {', '.join(bad)}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
