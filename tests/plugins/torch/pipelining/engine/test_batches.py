"""Batches of other sizes and lengths, any number of microbatches, training and evaluation in turn."""

from __future__ import annotations

import logging
from collections import UserDict

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
    rows,
    square_loss,
    train_alone,
    train_pipeline,
)
from torch import Tensor
from torch_spawn import run

ALL = "gpipe smp_interleaved 1f1b zb_1p zb_2p interleaved_1f1b interleaved_zero_bubble zb_v v_half v_min"


def counts_and_sizes() -> None:
    stages = dist.get_world_size()
    for microbatches in (1, 3, 5):
        for schedule in ALL.split() if stages == 2 and microbatches == 3 else ["1f1b", "gpipe", "zb_1p"]:
            assert_trains_as_one(
                Chain, rows(1, 2 * microbatches), schedules=[schedule], microbatches=microbatches
            )
    call = lambda model, part: model(**part)  # noqa: E731
    lengths = [
        *batches(1, 8, 12),
        *batches(1, 4, 5),
        *batches(1, 8, 7),
        *batches(1, 4, 12),
        *batches(1, 8, 12),
    ]
    assert_trains_as_one(Language, lengths, language_loss, call=call, schedules=("1f1b", "interleaved_1f1b"))
    without_mask = [{"ids": batch["ids"]} for batch in lengths[:2]]
    assert_trains_as_one(Language, without_mask, language_loss, call=call)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_microbatches_and_sizes(ranks: int) -> None:
    run(counts_and_sizes, ranks)


def fewer_microbatches_than_stages() -> None:
    for schedule in ("gpipe", "1f1b", "zb_1p", "smp_interleaved"):
        for microbatches in (1, 2, 6):
            assert_trains_as_one(
                Chain, rows(1, 2 * microbatches), schedules=[schedule], microbatches=microbatches
            )


def test_fewer_microbatches_than_stages() -> None:
    run(fewer_microbatches_than_stages, 4)


def parts(batch: dict[str, Tensor]) -> list[dict[str, Tensor]]:
    return [{name: item.chunk(4)[index] for name, item in batch.items()} for index in range(4)]


def trains_and_evaluates() -> None:
    import smdp.torch

    make = lambda: Language(dropout=0.0)  # noqa: E731
    for schedule in ("1f1b", "interleaved_1f1b", "zb_1p"):
        alone = made(make)
        pipe = smdp.torch.pipeline(made(make), 2, 4, schedule, example_inputs=batches(1)[0])
        optimizers = adam(alone), adam(pipe)
        for batch in batches(3, 8):
            for optimizer in optimizers:
                optimizer.zero_grad()
            pipe.eval()
            assert not pipe.module.training
            for _ in range(2):
                found = pipe.eval_step(batch, language_loss)
                with torch.no_grad():
                    expected = torch.stack(
                        [
                            language_loss(alone(**part), part)
                            for part in (
                                {name: item.chunk(4)[index] for name, item in batch.items()}
                                for index in range(4)
                            )
                        ]
                    ).mean()
                assert torch.equal(found, expected)
                assert not found.requires_grad
            assert all(parameter.grad is None for parameter in pipe.parameters())
            pipe.train()
            pipe.train_step(batch, language_loss)
            for part in parts(batch):
                (language_loss(alone(**part), part) / 4).backward()
            for optimizer in optimizers:
                optimizer.step()
        assert differences(pipe, alone) == {}


def tuples_and_tensors() -> None:
    """A batch may be a tuple, or a tensor."""
    import smdp.torch

    steps = rows()
    alone = made(Chain)
    train_alone(alone, steps, 4, square_loss, lambda model, part: model(part["x"]))
    pipe = smdp.torch.pipeline(made(Chain), 2, 4, example_inputs=(steps[0]["x"], steps[0]["y"]))
    train_pipeline(
        pipe,
        [(batch["x"], batch["y"]) for batch in steps],
        lambda output, part: square_loss(output, {"y": part[1]}),
    )
    assert differences(pipe, alone) == {}
    loss = pipe.train_step(steps[0]["x"], lambda output: output.square().mean())
    assert loss.shape == ()


def turns() -> None:
    trains_and_evaluates()
    tuples_and_tensors()


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_training_and_evaluation_in_turn(ranks: int) -> None:
    run(turns, ranks)


class Shifted(Chain):
    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        output: Tensor = super().forward(x + positions)
        return output


def other_batches() -> None:
    """A mapping as tokenizers give, and tensors that have no batch dimension, or another one."""
    import smdp.torch

    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("smdp.torch.pipelining.tensors.slicing").addHandler(handler)
    (rest,) = rows(1, 8)
    batch = {"positions": torch.ones(1, rest["x"].shape[1]), **rest}
    expected = square_loss(made(Shifted)(batch["positions"], batch["x"]), batch).item()
    pipe = smdp.torch.pipeline(made(Shifted), 2, 4, example_inputs=UserDict(batch))
    for given in (UserDict(batch), batch, {**batch, "weights": torch.ones(3)}):
        assert abs(pipe.eval_step(given, square_loss).item() - expected) < 1e-6
    (warning,) = told
    assert warning == (
        "[smdp] the batch size is 8, but the first dimension of some tensors is 3; those tensors are passed"
        " whole to every microbatch."
    )


def test_other_batches() -> None:
    run(other_batches, 2)
