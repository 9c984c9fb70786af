"""torch.compile of a pipeline's modules."""

from __future__ import annotations

import os

import pytest
from torch_spawn import run


def trains_compiled() -> None:
    import torch
    from pipeline_models import Language, batches, made, train_alone, train_pipeline
    from torch._dynamo.utils import counters

    import smdp.torch

    steps = batches(3)
    alone = made(lambda: Language(2))
    expected = train_alone(alone, steps, 4)
    model = made(lambda: Language(2))
    counters.clear()
    schedule = os.environ["SCHEDULE"]
    pipe = smdp.torch.pipeline(model, stages=2, microbatches=4, schedule=schedule, compile=True)
    losses = train_pipeline(pipe, steps)
    assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-5
    assert counters["stats"]["unique_graphs"] > 0
    whole = dict(alone.named_parameters())
    for name, parameter in pipe.named_parameters():
        torch.testing.assert_close(parameter, whole[name], atol=1e-4, rtol=1e-4)


# Compiled modules postpone no weight gradients, so zb_1p compiles the same graphs as 1f1b, for half a minute.
@pytest.mark.parametrize("schedule", ["1f1b", pytest.param("zb_1p", marks=pytest.mark.slow)])
def test_compiled_stages_train_as_plain_ones(schedule: str) -> None:
    run(trains_compiled, env={"SCHEDULE": schedule})
