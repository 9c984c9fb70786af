"""Does training with 16 bits cost accuracy? scikit-learn's digits and a small language model, one process.

    python tests/convergence/sixteen_bits.py

Trains with 32 bits and with MixedPrecision on the same batches, prints mean accuracies and losses, and fails
if bf16 loses 0.3 points of accuracy, or if a loss differs by 1 %. The text is that of Python's own manual.
"""

from __future__ import annotations

import argparse
import sys
from pydoc_data.topics import topics

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from smdp.torch import DynamicLossScale, MixedPrecision

KINDS = ("fp32", "bf16", "bf16, fp32 sums", "fp16")
MICROBATCHES = 2


def optimizer_of(kind: str, model: nn.Module, plain: torch.optim.Optimizer) -> MixedPrecision | None:
    if kind == "fp32":
        return None
    dtype = torch.float16 if kind == "fp16" else torch.bfloat16
    scale = DynamicLossScale(2.0**16) if kind == "fp16" else None
    return MixedPrecision(plain, model, dtype, loss_scale=scale, accumulate_in_fp32="sums" in kind)


class Trainer:
    """Trains a model with microbatches and clipping, in 32 or 16 bits."""

    def __init__(self, kind: str, model: nn.Module, plain: torch.optim.Optimizer) -> None:
        self.model, self.plain = model, plain
        self.mixed = optimizer_of(kind, model, plain)

    def step(self, inputs: Tensor, targets: Tensor) -> float:
        self.model.zero_grad()
        total = 0.0
        for own, expected in zip(inputs.chunk(MICROBATCHES), targets.chunk(MICROBATCHES), strict=True):
            logits = self.model(own)
            loss = functional.cross_entropy(logits.flatten(0, -2), expected.flatten()) / MICROBATCHES
            if self.mixed is None:
                loss.backward()
            else:
                self.mixed.backward(loss)
            total += loss.item()
        if self.mixed is None:
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.plain.step()
        else:
            self.mixed.clip_master_grads(1.0)
            self.mixed.step()
        return total


def network() -> nn.Module:
    features = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)]
    features += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*features, nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def accuracy(kind: str, seed: int, epochs: int) -> float:
    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32)[:, None] / 16
    digits = torch.tensor(data.target)
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(seed))
    test, train = order[:360], order[360:]
    torch.manual_seed(seed)
    model = network()
    trainer = Trainer(kind, model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    shuffle = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        for rows in train[torch.randperm(len(train), generator=shuffle)].split(64)[:-1]:
            trainer.step(pixels[rows], digits[rows])
    model.eval()
    with torch.no_grad():
        return 100 * (model(pixels[test]).argmax(1) == digits[test]).double().mean().item()


class Language(nn.Module):
    """A small GPT over bytes."""

    def __init__(self, width: int = 96, blocks: int = 2, length: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(256, width), nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        mask = torch.ones(length, length, dtype=torch.bool).triu(1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.words(tokens) + self.places, mask=self.mask)))


def text_loss(kind: str, seed: int, steps: int) -> float:
    """Returns the loss on text that was not trained on."""
    data = torch.tensor(list("\n".join(topics[key] for key in sorted(topics)).encode()))
    split = len(data) * 9 // 10
    torch.manual_seed(seed)
    model = Language()
    trainer = Trainer(kind, model, torch.optim.AdamW(model.parameters(), lr=2e-3))
    schedule = torch.optim.lr_scheduler.OneCycleLR(trainer.plain, 2e-3, total_steps=steps + 1)
    chosen = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(split - 65, (16,), generator=chosen)
        both = torch.stack([data[start : start + 65] for start in starts])
        trainer.step(both[:, :-1], both[:, 1:])
        schedule.step()
    model.eval()
    unseen = data[split:][: 64 * 65].view(-1, 65)
    with torch.no_grad():
        logits = model(unseen[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), unseen[:, 1:].flatten()).item()


def main() -> int:
    """Returns the number of results that are too far from those with 32 bits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=KINDS[:3])
    options = parser.parse_args()
    found: dict[str, tuple[float, float]] = {}
    for kind in options.kinds:
        right = [accuracy(kind, seed, options.epochs) for seed in range(options.seeds)]
        losses = [text_loss(kind, seed, options.steps) for seed in range(options.seeds)]
        found[kind] = sum(right) / options.seeds, sum(losses) / options.seeds
        print(f"{kind:16} digits {found[kind][0]:6.2f} %   text {found[kind][1]:7.4f}", flush=True)
    points, loss = found["fp32"]
    return sum(one < points - 0.3 or abs(other / loss - 1) > 0.01 for one, other in found.values())


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
