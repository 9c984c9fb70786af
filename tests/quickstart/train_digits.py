"""Train a small CNN on scikit-learn's digits on several ranks, and prove that the result is right.

    smdp run -n 2 tests/quickstart/train_digits.py

The training is plain PyTorch: `init_process_group`, DistributedDataParallel, a loop. smdp is one word in
it, the name of the backend. The script then

1. compares the time of a step over smdp with the time over gloo, PyTorch's own backend for CPUs, and
2. proves that distributed training changed nothing: all ranks hold the same bits, and the parameters are
   those of one process that trained alone on the same global batches. If not, the exit code is 1.

Any launcher will do, `torchrun --nproc-per-node 2` for one; `--backend gloo` runs it without smdp.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parameters_to_vector
from tqdm import tqdm

GLOBAL_BATCH = 32  # images per step, all ranks together
EPOCHS = 15
EXPECTED_ACCURACY = 0.97
EARLY_STEPS = 20  # in float32 rounding grows with every step, in any library: compare early ...
EARLY_TOLERANCE = 1e-5
FULL_TOLERANCE = 1e-9  # ... and over the whole run in float64


@dataclass(frozen=True)
class Images:
    """Grey images of 8 x 8 pixels and the digits they show."""

    pixels: Tensor
    digits: Tensor

    def __getitem__(self, index: Tensor) -> Images:
        return Images(self.pixels[index], self.digits[index])


def load_images() -> tuple[Images, Images]:
    """Split the 1,797 images into those to train on and those to test with, the same on every rank."""
    digits = load_digits()
    pixels = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target).long()
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0, stratify=digits.target)
    images = Images(pixels, labels)
    return images[torch.tensor(train)], images[torch.tensor(test)]


def make_model(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Make the network, with the same parameters on every rank.

    It has no batch norm and no dropout, so that its result depends on the global batch alone, not on how
    the batch is spread over ranks.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 4 * 4, 256), nn.ReLU(), nn.Linear(256, 10),
    ).to(dtype)  # fmt: skip


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def global_batches(images: Images) -> Iterator[Images]:
    """Give every batch of the whole run, shuffled anew in each epoch, the same on every rank."""
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images.digits), generator=torch.Generator().manual_seed(epoch))
        for index in order.split(GLOBAL_BATCH)[:-1]:  # without the last, smaller one
            yield images[index]


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Images) -> float:
    """Do one step of training and return the loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(batch.pixels), batch.digits, label_smoothing=0.1)
    loss.backward()  # DDP averages the gradients of all ranks here
    optimizer.step()
    return float(loss.detach())


def train(
    model: nn.Module, images: Images, rank: int, ranks: int, title: str, steps: int | None = None
) -> Tensor:
    """Train on this rank's part of every global batch.

    Returns:
        A copy of the parameters as they were after the first EARLY_STEPS steps.
    """
    optimizer = make_optimizer(model)
    batches = list(global_batches(images))[:steps]
    early = parameters_to_vector(model.parameters())
    with tqdm(batches, desc=title, disable=rank != 0, unit="step", mininterval=0.5, ncols=100) as progress:
        for step, batch in enumerate(progress, start=1):
            own = batch[torch.arange(rank, GLOBAL_BATCH, ranks)]
            loss = train_step(model, optimizer, own)
            progress.set_postfix(loss=f"{loss:.4f}", refresh=False)
            if step == EARLY_STEPS:
                early = parameters_to_vector(model.parameters()).detach().clone()
    return early


def accuracy(model: nn.Module, images: Images) -> float:
    with torch.no_grad():
        return float((model(images.pixels).argmax(dim=1) == images.digits).double().mean())


def step_times_ms(groups: dict[str, dist.ProcessGroup | None], images: Images) -> dict[str, float]:
    """Measure the median time of a step over each group (None: without communication), taking turns."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    own = next(global_batches(images))[torch.arange(rank, GLOBAL_BATCH, ranks)]
    steps: dict[str, Callable[[], float]] = {}
    for name, group in groups.items():
        model = make_model()
        if group is not None:
            model = DistributedDataParallel(model, process_group=group)
        optimizer = make_optimizer(model)
        steps[name] = partial(train_step, model, optimizer, own)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(12):
        for name, step in steps.items():
            for _ in range(5):  # the first turn of each warms up, and so do the first steps of every turn
                step()
            dist.barrier()
            for _ in range(15):
                start = time.perf_counter()
                step()
                times[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(values[15:]) for name, values in times.items()}


def report_step_times(backend: str, images: Images) -> None:
    """Print the time of a step with the backend and with gloo side by side."""
    groups = {"no communication": None, backend: dist.group.WORLD}
    if backend != "gloo":
        groups["gloo"] = dist.new_group(backend="gloo")  # a second backend beside the first
    times = step_times_ms(groups, images)
    if dist.get_rank() == 0:
        bare = times["no communication"]
        print("median time of a step:")
        for name, value in times.items():
            extra = f", of which {max(0.0, value - bare):.2f} ms for gradients" if value is not bare else ""
            print(f"  {name:<18}{value:7.2f} ms{extra}")


def has_same_bits_everywhere(vector: Tensor) -> bool:
    """Tell whether all ranks hold the same bits, signs of zero and NaNs included."""
    everyone = [torch.empty_like(vector) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, vector)
    return all(torch.equal(other.view(torch.uint8), vector.view(torch.uint8)) for other in everyone)


def largest_difference(a: Tensor, b: Tensor) -> float:
    return float((a.detach().double() - b.detach().double()).abs().max())


class Checks:
    """Prints what was checked on rank 0 and remembers whether all of it held."""

    def __init__(self) -> None:
        self.is_passed = True

    def add(self, claim: str, found: str, is_true: bool) -> None:
        self.is_passed &= is_true
        if dist.get_rank() == 0:
            print(f"  {'ok    ' if is_true else 'FAILED'} {claim}: {found}")


def main() -> int:
    """Train, measure, prove; return the exit code."""
    parser = argparse.ArgumentParser(description="Train a small CNN on digits over smdp, and prove it right.")
    parser.add_argument("--backend", default="smdp", help="backend of torch.distributed (default: smdp)")
    backend = parser.parse_args().backend

    # This line is all that smdp asks of a script. That the backend is known comes from having it installed.
    dist.init_process_group(backend)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if GLOBAL_BATCH % ranks:
        sys.exit(f"{ranks} ranks cannot share {GLOBAL_BATCH} images evenly: start 2, 4, 8, 16 or 32 ranks")

    images, test_images = load_images()
    model = DistributedDataParallel(make_model())
    early = train(model, images, rank, ranks, f"training on {ranks} ranks over {backend}")
    test_accuracy = accuracy(model.module, test_images)
    report_step_times(backend, images)

    # The same run once more in float64, for the proof.
    precise_images = Images(images.pixels.double(), images.digits)
    precise = DistributedDataParallel(make_model(torch.float64))
    train(precise, precise_images, rank, ranks, "the same in float64")

    checks = Checks()
    if rank == 0:
        print("checked:")
    checks.add(
        f"test accuracy is {EXPECTED_ACCURACY} or better",
        f"{test_accuracy:.4f}",
        test_accuracy >= EXPECTED_ACCURACY,
    )
    for name, trained in (("float32", model), ("float64", precise)):
        is_same = has_same_bits_everywhere(parameters_to_vector(trained.parameters()).detach())
        checks.add(f"all ranks hold the same {name} parameters", "bit by bit" if is_same else "no", is_same)

    # Rank 0 trains alone on the global batches; the others wait for it below.
    if rank == 0:
        alone = make_model()
        difference = largest_difference(
            early, train(alone, images, 0, 1, f"{EARLY_STEPS} steps alone", steps=EARLY_STEPS)
        )
        checks.add(
            f"as one process alone after {EARLY_STEPS} steps, within {EARLY_TOLERANCE:g}",
            f"largest difference {difference:.1e}",
            difference <= EARLY_TOLERANCE,
        )
        alone = make_model(torch.float64)
        train(alone, precise_images, 0, 1, "float64 alone")
        difference = largest_difference(
            parameters_to_vector(precise.parameters()), parameters_to_vector(alone.parameters())
        )
        checks.add(
            f"as one process alone over the whole float64 run, within {FULL_TOLERANCE:g}",
            f"largest difference {difference:.1e}",
            difference <= FULL_TOLERANCE,
        )
    dist.barrier()
    dist.destroy_process_group()
    return 0 if checks.is_passed else 1


if __name__ == "__main__":
    sys.exit(main())
