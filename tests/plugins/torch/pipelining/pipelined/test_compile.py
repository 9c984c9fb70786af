"""torch.compile of a pipeline's modules."""

from __future__ import annotations

from torch_spawn import run


def trains_compiled() -> None:
    import torch
    from pipeline_models import Language, batches, made, train_alone, train_pipeline
    from torch._dynamo.utils import counters

    import smdp.torch

    steps = batches(3)
    alone = made(lambda: Language(2))
    expected = train_alone(alone, steps, 4)
    for schedule in ("1f1b", "zb_1p"):
        model = made(lambda: Language(2))
        torch._dynamo.reset()
        counters.clear()
        pipe = smdp.torch.pipeline(model, stages=2, microbatches=4, schedule=schedule, compile=True)
        losses = train_pipeline(pipe, steps)
        assert max(abs(a - b) for a, b in zip(losses, expected, strict=True)) < 1e-5, schedule
        assert counters["stats"]["unique_graphs"] > 0, schedule
        whole = dict(alone.named_parameters())
        for name, parameter in pipe.named_parameters():
            torch.testing.assert_close(parameter, whole[name], atol=1e-4, rtol=1e-4)


def test_compiled_stages_train_as_plain_ones() -> None:
    run(trains_compiled)
