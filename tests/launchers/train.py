"""Train on scikit-learn's digits: the one script that every launcher starts, without a line for any of them.

It is plain PyTorch over the backend "smdp". The global batches are the same for any number of ranks, and so
is what rank 0 prints at the end, to all the digits shown:

    ranks=2 loss=0.012345

`--stop-at N` waits before step N until the file that `--hold` names is gone: tests do to a job in the middle
what they will.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

GLOBAL_BATCH = 64  # images per step, all ranks together
STEPS = 60


def main() -> None:
    """Train, and print the loss over all images."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS, help="default: %(default)s")
    parser.add_argument("--stop-at", type=int, default=-1, metavar="N", help="step before which to wait")
    parser.add_argument("--hold", default="", metavar="FILE", help="file to wait for the end of")
    arguments = parser.parse_args()

    if not dist.is_initialized():  # a program that calls main() may have done it
        dist.init_process_group("smdp")
    rank, ranks = dist.get_rank(), dist.get_world_size()

    digits = load_digits()
    images = torch.from_numpy(digits.data).double() / 16
    labels = torch.from_numpy(digits.target).long()
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10)).double()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for step in range(arguments.steps):
        if step == arguments.stop_at:
            print(f"rank={rank} pid={os.getpid()} step={step}", flush=True)
            while os.path.exists(arguments.hold):
                time.sleep(0.05)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(step))
        own = order[:GLOBAL_BATCH][rank::ranks]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[own]), labels[own]).backward()
        optimizer.step()

    with torch.no_grad():
        loss = nn.functional.cross_entropy(network(images), labels)
    if rank == 0:
        print(f"ranks={ranks} loss={loss.item():.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
