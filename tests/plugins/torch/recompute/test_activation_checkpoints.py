"""Activation checkpoints around modules and in them: the same bits, less memory, no stage run twice."""

from __future__ import annotations

import functools

import torch
import torch.distributed as dist
from pipeline_models import Chain, Layer, assert_trains_as_one, made, rows, square_loss
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch_spawn import run


class Around(Chain):
    """The checkpoint is the model's own code, with more in it than a module."""

    def forward(self, x: Tensor) -> Tensor:
        def twice(layer: nn.Module, x: Tensor) -> Tensor:
            return torch.tanh(layer(x)) * x

        for layer in self.layers:
            x = checkpoint(functools.partial(twice, layer), x, use_reentrant=False)
        return self.head(x)


class Within(Layer):
    """As transformers' layers: a flag, and a forward that looks at it."""

    def __init__(self, *, is_on: bool) -> None:
        super().__init__()
        self.gradient_checkpointing = is_on
        self.wide = nn.Linear(self.linear.in_features, 256)
        self.narrow = nn.Linear(256, self.linear.in_features)
        self.dropout = nn.Dropout(0.5)
        self.runs: list[type] = []

    def forward(self, hidden: Tensor) -> Tensor:
        if self.gradient_checkpointing and self.training:
            return checkpoint(self.plain, hidden, use_reentrant=False)  # type: ignore[no-any-return]
        return self.plain(hidden)

    def plain(self, hidden: Tensor) -> Tensor:
        self.runs.append(type(hidden))
        return super().forward(hidden) + self.narrow(self.dropout(torch.relu(self.wide(hidden))))


class Dropping(Chain):
    def __init__(self, is_on: bool) -> None:
        super().__init__(2)
        self.layers = nn.ModuleList(Within(is_on=is_on) for _ in range(4))


def recomputed() -> None:
    import smdp.torch

    assert_trains_as_one(Around, schedules=("1f1b", "zb_1p", "interleaved_1f1b"))
    batch = rows()[0]
    for schedule in ("1f1b", "zb_1p"):
        gradients, kept = [], []
        for is_on in (False, True):
            model = made(functools.partial(Dropping, is_on))
            pipe = smdp.torch.pipeline(
                model, 2, 4, schedule, batch, seed=3, pins={"layers.1": 0, "layers.2": 1}
            )
            layer = model.layers[3 * dist.get_rank()]
            layer.runs.clear()
            pipe.train_step(batch, square_loss)
            assert layer.runs.count(Tensor) == (8 if is_on else 4)
            gradients.append({name: parameter.grad for name, parameter in pipe.named_parameters()})
            kept.append(pipe.split.trace.units[1].activation_bytes)
        without, with_them = gradients
        assert all(torch.equal(gradient, with_them[name]) for name, gradient in without.items()), schedule
        assert 0 < kept[1] < kept[0] / 10


def test_recomputed_stages_give_the_same_bits() -> None:
    run(recomputed)
