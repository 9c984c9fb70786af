"""Data-parallel replicas of a pipeline, and whose parameters are in whose memory."""

from __future__ import annotations

import torch
import torch.distributed as dist
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
    train_alone,
)
from torch_spawn import run


def replicas() -> None:
    import smdp.torch

    for tied in (False, True):
        make = lambda tied=tied: Language(tied=tied)  # noqa: E731
        steps = batches(5, 16)
        alone = made(make)
        expected = train_alone(alone, steps, 8)
        for schedule in ("1f1b", "interleaved_1f1b", "zb_1p", "zb_v"):
            pipe = smdp.torch.pipeline(made(make), 2, 4, schedule, example_inputs=steps[0])
            assert pipe.layout.replicas == 2
            optimizer = adam(pipe)
            for batch, loss in zip(steps, expected, strict=True):
                optimizer.zero_grad()
                mine = {name: item.chunk(2)[pipe.layout.replica] for name, item in batch.items()}
                total = pipe.train_step(mine, language_loss)
                dist.all_reduce(total)
                # Each of the 4 ranks has the mean of its replica.
                assert abs(total.item() / 4 - loss) < 1e-5
                optimizer.step()
            assert all(far < 1e-5 for far in differences(pipe, alone).values()), (tied, schedule)


def replicas_accumulate_clip_and_thaw() -> None:
    """Gradients of two steps, clipped; then parameters are trained that were frozen at first."""
    import smdp.torch

    alone, model = made(Chain), made(Chain)
    for module in (alone, model):
        module.layers[:4].requires_grad_(False)
    pipe = smdp.torch.pipeline(model, 2, 4, example_inputs=rows()[0])
    optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in (alone, pipe)]
    for _ in range(2):
        for optimizer in optimizers:
            optimizer.zero_grad()
        for batch in rows(2, 16):
            for index in range(8):
                part = {name: item.chunk(8)[index] for name, item in batch.items()}
                (square_loss(alone(part["x"]), part) / 8).backward()
            mine = {name: item.chunk(2)[pipe.layout.replica] for name, item in batch.items()}
            pipe.train_step(mine, square_loss)
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        found = smdp.torch.clip_grad_norm_(pipe, 0.5)
        assert abs(found - expected) < 1e-4 * expected
        for optimizer in optimizers:
            optimizer.step()
        assert all(far < 1e-5 for far in differences(pipe, alone).values()), differences(pipe, alone)
        for module in (alone, pipe):
            module.requires_grad_(True)


class Noisy(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("noise", torch.randn(3))  # of no unit
        self.layers[5].register_buffer("noise", torch.randn(3))


def replicas_begin_alike() -> None:
    """Each replica has drawn weights and buffers of its own."""
    import smdp.torch

    first = made(Noisy)
    torch.manual_seed(dist.get_rank() // 2)
    drawn = Noisy()
    if dist.get_rank() < 2:
        drawn.load_state_dict(first.state_dict())
    pipe = smdp.torch.pipeline(drawn, 2, 4, example_inputs=rows()[0])
    assert pipe.layout.replica == dist.get_rank() // 2
    expected = first.state_dict()
    found = pipe.state_dict()
    assert "noise" in found and ("layers.5.noise" in found) == (pipe.layout.stage_rank == 1)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())


def two_by_two() -> None:
    replicas_begin_alike()
    replicas()
    replicas_accumulate_clip_and_thaw()


def test_two_replicas_of_two_stages() -> None:
    run(two_by_two, 4)


def ownership() -> None:
    import smdp.torch

    steps = batches(2, 8)
    for tied in (False, True):
        make = lambda tied=tied: Language(tied=tied)  # noqa: E731
        alone = made(make)
        whole = dict(alone.named_parameters())
        for schedule in ("1f1b", "interleaved_1f1b", "zb_1p", "zb_v"):
            torch.manual_seed(0)
            with smdp.torch.delayed_initialization():
                model = make()
            assert all(parameter.is_meta for parameter in model.parameters())
            pipe = smdp.torch.pipeline(model, 2, 4, schedule, example_inputs=steps[0])
            own = dict(pipe.named_parameters())
            assert 0 < len(own) < len(whole)
            for name, parameter in pipe.module.named_parameters():
                assert parameter.is_meta == (name not in own), name
            for name, parameter in own.items():
                assert torch.equal(parameter, whole[name]), name
            names: list[list[str]] = [[], []]
            dist.all_gather_object(names, list(own))
            assert {*names[0], *names[1]} == set(whole)
            shared = {"words.weight"} if tied else set()
            assert {*names[0]} & {*names[1]} <= shared
    trained = made(Language)
    train_alone(trained, steps, 4)
    with smdp.torch.delayed_initialization():
        model = made(Language)
    pipe = smdp.torch.pipeline(model, 2, 4)  # no example inputs: cut by bytes
    before = {name: id(parameter) for name, parameter in pipe.named_parameters()}
    optimizer = adam(pipe)
    for batch in steps:
        optimizer.zero_grad()
        pipe.train_step(batch, language_loss)
        optimizer.step()
    assert differences(pipe, trained) == {}
    assert {name: id(parameter) for name, parameter in pipe.named_parameters()} == before
    with torch.device("meta"):
        meta = Chain()
    pipe = smdp.torch.pipeline(meta, 2, 4, example_inputs=rows()[0])
    assert torch.isfinite(pipe.train_step(rows()[0], square_loss))


def test_foreign_parameters_take_no_memory() -> None:
    run(ownership, 2)
