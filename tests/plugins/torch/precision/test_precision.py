"""bf16 by autocast, fp16 with a loss scaler, float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import (
    Chain,
    Language,
    adam,
    assert_trains_as_one,
    batches,
    differences,
    language_loss,
    made,
    only_x,
    rows,
    square_loss,
    train_alone,
)
from torch import Tensor, nn
from torch_spawn import run


def bfloat16() -> None:
    import smdp.torch

    steps = batches(3, 8)
    alone = made(Language)

    def loss_fn(output: dict[str, Tensor], part: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return language_loss(output, part)

    def call(model: nn.Module, part: dict[str, Tensor]) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(**part)

    train_alone(alone, steps, 4, loss_fn, call)
    for schedule in ("1f1b", "interleaved_1f1b", "zb_1p"):
        pipe = smdp.torch.pipeline(made(Language), 2, 4, schedule, example_inputs=steps[0])
        optimizer = adam(pipe)
        for batch in steps:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                pipe.train_step(batch, language_loss)
            optimizer.step()
        assert differences(pipe, alone) == {}, schedule

    class Autocast(Language):
        def forward(self, ids: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return super().forward(ids, mask)

    # Autocast in the model's own code; and values in bf16 between modules.
    assert_trains_as_one(Autocast, steps[:1], language_loss, call=lambda model, part: model(**part))
    half = lambda: Chain().bfloat16()  # noqa: E731
    assert_trains_as_one(half, rows(2, dtype=torch.bfloat16), within=0.0)


def float64() -> None:
    double = lambda: Chain().double()  # noqa: E731
    pipe = assert_trains_as_one(double, rows(2, dtype=torch.float64), schedules=("1f1b", "zb_1p"))
    assert pipe.train_step(rows(1, dtype=torch.float64)[0], square_loss).dtype == torch.float64


def float16() -> None:
    import smdp.torch

    def train(model: nn.Module, scaler: Any, optimizer: Any, step: Any, clip: Any) -> list[float]:
        scales = []
        for index, batch in enumerate(rows(5)):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.float16):
                step(batch)
            if index == 2:  # an overflow on the first stage alone
                for name, parameter in model.named_parameters():
                    if name == "layers.0.linear.weight":
                        parameter.grad[0, 0] = float("inf")
            if index == 3:
                scaler.unscale_(optimizer)
                clip(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            scales.append(scaler.get_scale())
        return scales

    alone = made(Chain)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)

    def step(batch: dict[str, Tensor]) -> None:
        for index in range(4):
            part = {name: item.chunk(4)[index] for name, item in batch.items()}
            scaler.scale(square_loss(only_x(alone, part), part) / 4).backward()

    optimizer = torch.optim.AdamW(alone.parameters(), lr=1e-2)
    expected = train(alone, scaler, optimizer, step, nn.utils.clip_grad_norm_)
    assert expected == [1024, 2048, 1024, 1024, 2048]
    pipe = smdp.torch.pipeline(made(Chain), 2, 4, example_inputs=rows()[0])
    agreed = smdp.torch.GradScaler(pipe, init_scale=1024.0, growth_interval=2)
    optimizer = torch.optim.AdamW(pipe.parameters(), lr=1e-2)
    found = train(
        pipe,
        agreed,
        optimizer,
        lambda batch: pipe.train_step(batch, square_loss, scaler=agreed),
        smdp.torch.clip_grad_norm_,
    )
    assert found == expected, (dist.get_rank(), found)
    assert differences(pipe, alone) == {}


def precisions() -> None:
    bfloat16()
    float64()
    float16()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_precisions(ranks: int) -> None:
    run(precisions, ranks)
