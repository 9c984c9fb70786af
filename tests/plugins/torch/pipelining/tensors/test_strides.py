"""Values and gradients lie in memory on every stage as they do in one process: kernels round by that."""

from __future__ import annotations

from pipeline_models import WIDTH, Chain, assert_trains_as_one, rows, square_loss
from torch import Tensor, isfinite, nn
from torch_spawn import run

import smdp.torch


class Normed(nn.Module):
    """Gives what batch norm makes of transposed values, whose strides torch predicts wrongly; notes them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.seen: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor:
            self.seen.append(x.stride())
        x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        return x + self.linear(x)


class NormedChain(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Normed() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, None].repeat(1, 5, 1)
        return super().forward(x).mean(1)


def seen(model: NormedChain, place: int) -> list[tuple[int, ...]]:
    layer = model.layers[place]
    assert isinstance(layer, Normed)
    return layer.seen


def strides() -> None:
    alone = NormedChain()
    for part in rows()[0]["x"].chunk(4):
        alone(part)
    assert len({seen(alone, place)[0] for place in range(4)}) > 1, "all strides are alike"
    model = NormedChain()
    pipe = smdp.torch.pipeline(model, microbatches=4)
    pipe.train_step(rows()[0], square_loss)
    own = pipe.split.weights
    for place in range(4):
        if own[f"layers.{place}.linear.weight"] == {pipe.layout.stage_rank}:
            assert seen(model, place) == seen(alone, place), place
    assert_trains_as_one(NormedChain)
    assert_trains_as_one(NormedChain, schedules=["interleaved_1f1b"], virtual_stages=2)
    for step in (pipe.eval_step, pipe.train_step):
        assert isfinite(step(rows()[0], square_loss))


def test_values_keep_their_strides() -> None:
    run(strides, 2)
