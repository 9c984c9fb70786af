"""What training in 16 bits with MixedPrecision costs in accuracy, against 32 bits, in one process on the CPU.

Digits: handwritten digits of scikit-learn, by a convolutional network, in points of accuracy on images that
training has not seen. Text: the help texts of Python in pydoc_data, by a transformer that predicts the next
character, in the loss on texts that training has not seen. All kinds start from the same weights and see the
same batches, and the means over several seeds count.

    python tests/benchmarks/mixed_precision_accuracy.py

It ends with an error if a kind is further from 32 bits than 0.3 points or 1 % of the loss.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import statistics
import time
from collections.abc import Callable, Iterator

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

import smdp.torch

KINDS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
POINTS, PART_OF_LOSS = 0.3, 0.01
LENGTH, WIDTH, CHARACTERS = 32, 64, 128
Batches = Iterator[tuple[Tensor, Tensor]]


def digits() -> tuple[Tensor, Tensor]:
    """Returns images of shape (1797, 1, 8, 8) and their digits, in a fixed random order."""
    images, targets = load_digits(return_X_y=True)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    return torch.tensor(images).float()[order].view(-1, 1, 8, 8) / 16, torch.tensor(targets)[order]


class Network(nn.Sequential):
    """Convolutions with batch norms, and a linear layer."""

    def __init__(self) -> None:
        super().__init__(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(512, 10)),
        )


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: Tensor) -> Tensor:
        both = self.attention(self.first(hidden)).unflatten(-1, (3, -1, 16)).movedim(-3, 0)
        query, key, value = (each.transpose(1, 2) for each in both)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        hidden = hidden + self.out(mixed.transpose(1, 2).flatten(-2))
        return hidden + self.down(functional.gelu(self.up(self.second(hidden))))


class Language(nn.Module):
    """A small GPT-2 over characters."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(CHARACTERS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, CHARACTERS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.blocks(self.words(tokens) + self.places.weight)
        found: Tensor = self.head(self.norm(hidden)).transpose(1, 2)
        return found


def trained(model: nn.Module, dtype: torch.dtype | None, rate: float, batches: Batches) -> nn.Module:
    """Trains a model with cross entropy; None: in 32 bits."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    mixed = None if dtype is None else smdp.torch.MixedPrecision(optimizer, model, dtype)
    for inputs, targets in batches:
        loss = functional.cross_entropy(model(inputs), targets)
        if mixed is None:
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            mixed.backward(loss)
            mixed.step()
            mixed.zero_grad()
    return model.eval()


def accuracy_of_digits(dtype: torch.dtype | None, seed: int, epochs: int) -> float:
    """Returns the percentage of right answers on the last 797 images."""
    images, targets = digits()
    generator = torch.Generator().manual_seed(seed)

    def batches() -> Batches:
        for _ in range(epochs):
            for places in torch.randperm(1000, generator=generator).split(50):
                yield images[places], targets[places]

    torch.manual_seed(seed)
    model = trained(Network(), dtype, 2e-3, batches())
    with torch.no_grad():
        right = model(images[1000:]).argmax(1) == targets[1000:]
    return 100 * right.float().mean().item()


def loss_of_text(dtype: torch.dtype | None, seed: int, steps: int) -> float:
    """Returns the mean loss of a character on the last tenth of the text."""
    text = "\n".join(pydoc_data.topics.topics.values()).encode("ascii", "ignore")
    characters = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    seen = len(characters) * 9 // 10
    generator = torch.Generator().manual_seed(seed)

    def windows(starts: Tensor) -> tuple[Tensor, Tensor]:
        found = torch.stack([characters[start : start + LENGTH + 1] for start in starts.tolist()])
        return found[:, :-1], found[:, 1:]

    torch.manual_seed(seed)
    starts = torch.randint(seen - LENGTH, (steps, 16), generator=generator)
    model = trained(Language(), dtype, 2e-3, map(windows, starts))
    parts = torch.arange(seen, len(characters) - LENGTH - 1, LENGTH).split(64)
    with torch.no_grad():
        losses = [functional.cross_entropy(model(inputs), after) for inputs, after in map(windows, parts)]
    return statistics.mean(loss.item() for loss in losses[:-1])  # the last part is smaller


def measured(measure: Callable[[torch.dtype | None, int], float], seeds: int) -> dict[str, float]:
    """Returns the mean over seeds of each kind, and prints the time."""
    found = {}
    for kind, dtype in KINDS.items():
        began = time.monotonic()
        found[kind] = statistics.mean(measure(dtype, seed) for seed in range(seeds))
        print(f"  {kind}: {found[kind]:.4f} ({time.monotonic() - began:.0f} s)", flush=True)
    return found


def main() -> None:
    """Trains all kinds, and compares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=30, help="of digits")
    parser.add_argument("--steps", type=int, default=600, help="of text")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("digits, accuracy in %")
    right = measured(lambda dtype, seed: accuracy_of_digits(dtype, seed, options.epochs), options.seeds)
    print("text, loss of a character")
    losses = measured(lambda dtype, seed: loss_of_text(dtype, seed, options.steps), options.seeds)
    for kind in ("bf16", "fp16"):
        points = right[kind] - right["fp32"]
        part = losses[kind] / losses["fp32"] - 1
        print(f"{kind}: {points:+.2f} points of accuracy, {100 * part:+.2f} % of the loss")
        assert abs(points) <= POINTS, kind
        assert abs(part) <= PART_OF_LOSS, kind


if __name__ == "__main__":
    main()
