"""Pipelines train to the bits of one process, under every schedule, on 2 and on 4 ranks."""

from __future__ import annotations

import itertools
import os

import pytest
from torch_spawn import run

SCHEDULES = [
    ["gpipe", "smp_interleaved", "1f1b", "zb_1p", "zb_2p", "interleaved_1f1b", "looped_bfs"],
    ["interleaved_zero_bubble", "zb_v", "v_half", "v_min", "dualpipe_v", "auto"],
]


def trains_as_one_process() -> None:
    import torch.distributed as dist
    from pipeline_models import (
        Language,
        batches,
        differences,
        language_loss,
        made,
        train_alone,
        train_pipeline,
    )

    import smdp.torch

    alone = made(Language)
    expected = train_alone(alone, batches(5), 8)
    expected_evaluation = None
    batch = batches(1)[0]
    full = language_loss(made(Language)(**batch), batch).item()
    for schedule in os.environ["SCHEDULES"].split(","):
        pipe = smdp.torch.pipeline(
            made(Language), stages=dist.get_world_size(), microbatches=8, schedule=schedule
        )
        assert abs(pipe.eval_step(batch, language_loss).item() - full) < 1e-6, schedule
        losses = train_pipeline(pipe, batches(5))
        assert abs(losses[0] - full) < 1e-6, schedule
        assert differences(pipe, alone) == {}, schedule
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-6, schedule
        found = pipe.eval_step(batches(1)[0], language_loss).item()
        expected_evaluation = expected_evaluation or found
        assert found == expected_evaluation
        names = [None] * dist.get_world_size()
        dist.all_gather_object(names, [name for name, _ in pipe.named_parameters()])
        assert sorted(itertools.chain.from_iterable(names)) == sorted(
            name for name, _ in alone.named_parameters()
        )


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("schedules", SCHEDULES)
def test_parameters_have_the_bits_of_one_process(schedules: list[str], ranks: int) -> None:
    run(trains_as_one_process, ranks, env={"SCHEDULES": ",".join(schedules)})


def trains_with_tied_weights() -> None:
    import torch.distributed as dist
    from pipeline_models import Language, batches, differences, made, train_alone, train_pipeline

    import smdp.torch

    alone = made(lambda: Language(tied=True))
    train_alone(alone, batches(5), 8)
    for schedule in os.environ["SCHEDULES"].split(","):
        model = made(lambda: Language(tied=True))
        pipe = smdp.torch.pipeline(model, stages=dist.get_world_size(), schedule=schedule)
        train_pipeline(pipe, batches(5))
        found = differences(pipe, alone)
        assert all(difference < 1e-6 for difference in found.values()), (schedule, found)
        ends = {pipe.schedule.rank_of[0], pipe.schedule.rank_of[-1]}
        has_words = "words.weight" in dict(pipe.named_parameters())
        assert has_words == (pipe.layout.stage_rank in ends), schedule


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("schedules", SCHEDULES)
def test_tied_weights_are_trained_as_one(schedules: list[str], ranks: int) -> None:
    run(trains_with_tied_weights, ranks, env={"SCHEDULES": ",".join(schedules)})


def trains_modules_used_again() -> None:
    from pipeline_models import Chain, Layer, adam, differences, made, rows, square_loss, train_alone
    from torch import Tensor, nn

    import smdp.torch

    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = Layer()
            self.second = Layer()

        def forward(self, x: Tensor) -> Tensor:
            return self.first(self.second(self.first(self.first(x))))  # type: ignore[no-any-return]

    class Model(Chain):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(Again() for _ in range(4))

    alone = made(Model)
    train_alone(alone, rows(), 4, square_loss, call=lambda model, part: model(part["x"]))
    for schedule in ("1f1b", "zb_1p", "zb_v"):
        pipe = smdp.torch.pipeline(made(Model), stages=2, microbatches=4, schedule=schedule)
        optimizer = adam(pipe)
        for batch in rows():
            optimizer.zero_grad()
            pipe.train_step(batch, square_loss)
            optimizer.step()
        assert differences(pipe, alone) == {}, schedule


def test_gradients_of_modules_used_again_have_the_bits_of_one_process() -> None:
    run(trains_modules_used_again)
