"""Steps of any code around the model: run_step()."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pipeline_models import (
    Chain,
    Language,
    adam,
    batches,
    differences,
    language_loss,
    made,
    rows,
    square_loss,
)
from torch import Tensor
from torch_spawn import run

import smdp.torch


def cut(batch: dict[str, Tensor], count: int) -> list[dict[str, Tensor]]:
    return [{name: item.chunk(count)[index] for name, item in batch.items()} for index in range(count)]


def any_code_around_the_model() -> None:
    steps = batches(3)
    alone = made(Language)
    pipe = smdp.torch.pipeline(made(Language), stages=2, microbatches=4, example_inputs=steps[0])
    theirs, ours = adam(alone), adam(pipe)
    for step, count in zip(steps, (4, 2, 4), strict=True):
        theirs.zero_grad()
        ours.zero_grad()

        def program(part: dict[str, Tensor]) -> Any:
            ids = part["ids"].flip(1)
            output = pipe(ids, mask=part["mask"])
            loss = language_loss(output, part)
            pipe.backward(loss)
            return loss.item(), {"logits": output["logits"][:, :2]}, "text"

        found = pipe.run_step(program, cut(step, count), is_training=True)
        for (loss, output, text), part in zip(found, cut(step, count), strict=True):
            expected = alone(part["ids"].flip(1), mask=part["mask"])
            expected_loss = language_loss(expected, part)
            (expected_loss / count).backward()
            assert text == "text"
            assert loss == expected_loss.item()
            assert torch.equal(output["logits"], expected["logits"][:, :2])
        theirs.step()
        ours.step()
    assert differences(pipe, alone) == {}

    # The mean of losses, beside what the program gives.
    def quiet(part: dict[str, Tensor]) -> str:
        pipe.backward(language_loss(pipe(part["ids"], mask=part["mask"]), part))
        return "told"

    mean, told = pipe.run_step(quiet, cut(steps[0], 4), is_training=True, mean_loss=True)
    losses = [language_loss(alone(part["ids"], mask=part["mask"]), part) for part in cut(steps[0], 4)]
    assert mean == torch.stack(losses).mean() and told == ["told"] * 4

    # No backward: gradients stay as they are, also in training mode.
    ours.zero_grad()
    outputs = pipe.run_step(lambda part: pipe(part["ids"])["logits"], cut(steps[0], 2), is_training=True)
    assert torch.equal(outputs[1], alone(cut(steps[0], 2)[1]["ids"])["logits"])
    assert all(parameter.grad is None for parameter in pipe.parameters())
    # No model either.
    assert pipe.run_step(lambda part: part["ids"].sum(), cut(steps[0], 2), is_training=False)[0] > 0


def test_any_code_around_the_model() -> None:
    run(any_code_around_the_model, 2)


def programs_that_cannot_run() -> None:
    steps = rows()

    def refused(program: Any, text: str, parts: int = 4) -> None:
        pipe = smdp.torch.pipeline(made(Chain), stages=2, microbatches=4, example_inputs=steps[0])
        with pytest.raises((RuntimeError, ValueError), match=text):
            pipe.run_step(lambda part: program(pipe, part), cut(steps[0], 4)[:parts], is_training=True)

    def twice(pipe: Any, part: dict[str, Tensor]) -> None:
        loss = square_loss(pipe(part["x"]), part)
        pipe.backward(loss)
        pipe.backward(loss)

    refused(twice, "backward.. is called twice")
    refused(lambda pipe, part: pipe(pipe(part["x"]).expand(-1, 32)), "model is called twice")
    refused(lambda pipe, part: pipe.backward(part["y"].sum()), "does not depend on any stage")
    refused(lambda pipe, part: pipe.backward(pipe(part["x"])), "one number")
    refused(lambda pipe, part: pipe.backward(3.0), "float")
    refused(twice, "no microbatches", 0)
    pipe = smdp.torch.pipeline(made(Chain), stages=2, microbatches=4, example_inputs=steps[0])
    with pytest.raises((RuntimeError, ValueError), match="mean_loss=True did not call backward"):
        pipe.run_step(lambda part: pipe(part["x"]).sum(), cut(steps[0], 4), is_training=False, mean_loss=True)
    pipe = smdp.torch.pipeline(made(Chain), stages=2, microbatches=4, example_inputs=steps[0])
    with pytest.raises(RuntimeError, match="only within the program"):
        pipe.backward(torch.zeros(()))


def test_programs_that_cannot_run() -> None:
    run(programs_that_cannot_run, 2)


def devices_of_code() -> None:
    class Asks(Chain):
        def forward(self, x: Tensor) -> Tensor:
            devices.add(str(torch.get_default_device()))
            return super().forward(x)

    devices: set[str] = set()
    steps = rows()
    pipe = smdp.torch.pipeline(made(Asks), 2, 4, example_inputs=steps[0])
    devices.clear()
    for batch in steps:
        with torch.device("meta"):
            assert torch.isfinite(pipe.train_step(batch, square_loss))
    assert devices == {"meta"}


def test_default_device_of_the_caller() -> None:
    run(devices_of_code, 2)
