"""Weights that the forward makes, as torch's normalizations do, or changes, which is refused."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import pytest
import torch
from pipeline_models import WIDTH, Chain, assert_trains_as_one, rows, square_loss
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch_spawn import run

NORMALIZATIONS: list[Any] = [
    weight_norm,
    parametrizations.weight_norm,
    spectral_norm,
    parametrizations.spectral_norm,
    functools.partial(prune.l1_unstructured, name="weight", amount=0.5),
]


class Normalized(Chain):
    """A unit with the hooks of a normalization, and units with modules that have them."""

    def __init__(self, normalize: Any) -> None:
        super().__init__()
        for layer in (self.layers[1].linear, self.layers[5].linear, self.head):
            normalize(layer)


def train_normalized() -> None:
    warnings.simplefilter("ignore", FutureWarning)
    for normalize in NORMALIZATIONS:
        for example in (rows()[0], None):
            assert_trains_as_one(functools.partial(Normalized, normalize), example_inputs=example)


def test_normalized_weights() -> None:
    run(train_normalized, 2)


class Scaled(Chain):
    """Changes its scale before it is used, the way it is told."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))
        self.other = nn.Parameter(torch.tensor(1.0))
        self.how = how

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            match self.how:
                case "bounded data":
                    self.scale.data.clamp_(max=2)
                case "bounded data set":
                    self.scale.data = torch.clamp(self.scale.data, max=2)
                case "average":
                    self.scale.mul_(0.5).add_(0.5 * self.other)
                case "average of data":
                    self.scale.data.mul_(0.5).add_(self.other.data, alpha=0.5)
                case "average of data set":
                    self.scale.data = self.scale.data * 0.5 + self.other.data * 0.5
                case "bounded":
                    self.scale.clamp_(max=2)
                case "bounded average of data set":
                    self.scale.data = (self.scale.data * 0.5 + self.other.data * 0.5).clamp(max=2)
                case "cast":
                    self.scale.data = self.scale.data.to(x.dtype)
        output: Tensor = super().forward(x) * self.scale * self.other
        return output


class Averaging(nn.Module):
    """The same inside a module that is never cut."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.linear, self.average, self.how = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), how

    def forward(self, x: Tensor) -> Tensor:
        weight, average = self.linear.weight, self.average.weight
        with torch.no_grad():
            match self.how:
                case "bounded data":
                    average.data.clamp_(max=0.1)
                case "average":
                    average.mul_(0.5).add_(weight, alpha=0.5)
                case "bounded data set":
                    self.average.bias.data = self.average.bias.data.clamp(max=0.1)
                case "average of data set":
                    average.data = average.data * 0.5 + weight.data * 0.5
                case "each":
                    torch._foreach_mul_([weight, average], 0.5)
                case "average of data":
                    average.data.mul_(0.5).add_(weight.data, alpha=0.5)
        return torch.tanh(self.linear(x) + self.average(x))


class Averages(Chain):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layers[2] = Averaging(how)


class Words(nn.Module):
    """Looks up rows whose norm is bounded, by a module and by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, WIDTH, max_norm=1.0)
        self.more = nn.Parameter(torch.randn(9, WIDTH))
        self.chain = Chain()

    def forward(self, x: Tensor) -> Tensor:
        words = x.argmax(1) % 9
        output: Tensor = self.chain(
            self.words(words) + nn.functional.embedding(words, self.more, max_norm=1.0)
        )
        return output


def train_bounded() -> None:
    for how in ("bounded data", "bounded data set", "cast"):
        assert_trains_as_one(functools.partial(Scaled, how))
    for how in ("bounded data", "bounded data set"):
        assert_trains_as_one(functools.partial(Averages, how))
    assert_trains_as_one(Words)
    assert_trains_as_one(Words, example_inputs=None)


def test_bounded_weights() -> None:
    run(train_bounded, 2)


def refused() -> None:
    import smdp.torch

    ways = ["average", "average of data", "average of data set"]
    more = ["bounded", "bounded average of data set"]
    wrong: list[tuple[nn.Module, str]] = [(Scaled(how), "'scale'") for how in ways + more]
    wrong += [(Averages(how), "'layers.2.average.weight'") for how in ways]
    wrong += [(Averages("each"), "'layers.2.linear.weight'")]
    for model, weight in wrong:
        with pytest.raises(ValueError, match=r"changes parameter .* in place") as caught:
            smdp.torch.pipeline(model, microbatches=4, example_inputs=rows()[0])
        assert weight in str(caught.value) and "after optimizer.step()" in str(caught.value)
    # Without example inputs it is found in the first step.
    pipe = smdp.torch.pipeline(Averages("average"), microbatches=4)
    with pytest.raises((ValueError, RuntimeError), match=r"'layers\.2\.average\.weight' in place"):
        pipe.train_step(rows()[0], square_loss)


def test_weights_changed_in_place() -> None:
    run(refused, 2)
