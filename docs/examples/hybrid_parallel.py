"""Data parallel and model parallel at once: the example that Amazon's guide to model parallelism computes.

    smdp run -n 8 docs/examples/hybrid_parallel.py

Eight processes: the model is split over four, twice. Both replicas see other images; each stage averages its
gradients with its twin in the other replica.
"""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

import smdp.torch

STAGES = 4
GLOBAL_BATCH = 64
IMAGES = 640
MICROBATCHES = 4


def load_images() -> TensorDataset:
    """640 grey images of 8 x 8 pixels, and the digits they show."""
    digits = load_digits()
    pixels = torch.from_numpy(digits.images[:IMAGES]).float().unsqueeze(1) / 16
    return TensorDataset(pixels, torch.from_numpy(digits.target[:IMAGES]).long())


def make_model() -> nn.Sequential:
    """The same on every rank."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 256), nn.ReLU(),
        nn.Linear(256, 256), nn.ReLU(),
        nn.Linear(256, 128), nn.ReLU(),
        nn.Linear(128, 10),
    )  # fmt: skip


def loss_fn(output: Tensor, microbatch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(output, microbatch[1])


def main() -> None:
    dist.init_process_group("smdp")
    images = load_images()
    pipe = smdp.torch.pipeline(make_model(), STAGES, MICROBATCHES)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)

    layout = pipe.layout
    per_replica = GLOBAL_BATCH // layout.replicas
    # All four ranks of a replica get the same images: the sampler counts replicas, not ranks.
    sampler = DistributedSampler(images, num_replicas=layout.replicas, rank=layout.replica, seed=1)
    loader = DataLoader(images, per_replica, sampler=sampler, drop_last=True)
    say(
        f"{dist.get_world_size()} processes: {layout.replicas}-way data parallel,"
        f" {layout.placement.pipeline}-way model parallel\n"
        f"global batch {GLOBAL_BATCH}: {per_replica} images per replica in each iteration\n"
        f"{len(images)} images: {len(loader)} iterations"
    )
    names = [name for name, _ in pipe.named_parameters()]
    print(f"replica {layout.replica}, stage {layout.stage_rank}: {', '.join(names)}", flush=True)

    for iteration, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = pipe.train_step(batch, loss_fn)
        optimizer.step()
        # The mean over one replica's images.
        say(f"iteration {iteration + 1}: loss {loss:.3f}")

    # Both replicas have trained one model: every parameter has the same bits in both.
    replicas: list[dict[str, Tensor]] = [{}] * dist.get_world_size()
    dist.all_gather_object(replicas, pipe.state_dict())
    for rank, found in enumerate(replicas):
        twin = layout.placement.coordinates(rank)._replace(rdp=0)
        first = replicas[layout.placement.rank(**twin._asdict())]
        if not all(torch.equal(found[name], first[name]) for name in first):
            sys.exit(f"rank {rank} has other parameters than its twin in replica 0")
    say(f"all {layout.replicas} replicas have the same parameters, bit for bit")
    dist.destroy_process_group()


def say(text: str) -> None:
    if dist.get_rank() == 0:
        print(text, flush=True)


if __name__ == "__main__":
    main()
