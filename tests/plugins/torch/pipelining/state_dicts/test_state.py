"""What a step leaves behind: buffers, frozen and adapted parameters, accumulated and clipped gradients."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from pipeline_models import (
    WIDTH,
    Chain,
    Language,
    Layer,
    assert_trains_as_one,
    batches,
    language_loss,
    made,
    only_x,
    rows,
    square_loss,
)
from torch import Tensor, nn
from torch_spawn import run

BOTH = ("1f1b", "interleaved_1f1b")


class Normed(nn.Module):
    """Running statistics in units and, without parameters, between them; a buffer that a unit counts in."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(Layer(), nn.BatchNorm1d(WIDTH), Counting()) for _ in range(4)
        )
        self.between = nn.ModuleList(
            nn.Sequential(nn.BatchNorm1d(WIDTH, affine=False), Counting(averages=False)) for _ in range(4)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: Tensor) -> Tensor:
        for layer, between in zip(self.layers, self.between, strict=True):
            x = between(layer(x))
        return self.head(x)


class Counting(nn.Module):
    def __init__(self, *, averages: bool = True) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(WIDTH) if averages else None)

    def forward(self, x: Tensor) -> Tensor:
        self.seen += len(x)
        if self.mean is not None:
            self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x


def buffers() -> None:
    pipe = assert_trains_as_one(Normed, rows(3, 16), schedules=(*BOTH, "zb_1p"))
    names: list[list[str]] = [[], []]
    dist.all_gather_object(names, [name for name, _ in pipe.named_buffers()])
    assert sorted(names[0] + names[1]) == sorted(name for name, _ in Normed().named_buffers())
    # Each is saved by the rank that writes it, so no initial value is.
    buffers = dict(pipe.named_buffers())
    saved = {name for name, entry in pipe.entries().items() if pipe.saves(entry)}
    assert {name for name in saved if name in dict(Normed().named_buffers())} == set(buffers)


class Adapter(nn.Module):
    """A frozen layer and its low-rank adapter, as LoRA has them."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(WIDTH, 2, bias=False)
        self.up = nn.Linear(2, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


def frozen(which: Callable[[str], bool]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = Chain()
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not which(name))
        return model

    return make


def adapted() -> nn.Module:
    model = Chain().requires_grad_(False)
    for layer in model.layers:
        layer.linear = Adapter(layer.linear)
    return model


def frozen_while_it_has_a_gradient() -> None:
    import smdp.torch

    batch = batches(1, 8)[0]
    pipe = smdp.torch.pipeline(made(lambda: Language(tied=True)), 2, 4, example_inputs=batch)
    pipe.train_step(batch, language_loss)
    shared = dict(pipe.named_parameters())["words.weight"]
    before = shared.grad.clone()
    shared.requires_grad_(False)
    pipe.train_step(batch, language_loss)
    assert torch.equal(shared.grad, before)


def test_a_tied_weight_is_frozen_while_it_has_a_gradient() -> None:
    run(frozen_while_it_has_a_gradient, 2)


def frozen_parameters() -> None:
    halves = [f"layers.{index}." for index in range(8)]
    for first, last in ((0, 4), (4, 8), (2, 6), (1, 2), (0, 8)):
        made_so = frozen(lambda name, part=tuple(halves[first:last]): name.startswith(part))
        assert_trains_as_one(made_so, schedules=("1f1b", "zb_1p"))
    assert_trains_as_one(adapted, schedules=(*BOTH, "zb_v"))
    assert_trains_as_one(lambda: adapted().train(), rows(2), schedules=BOTH[:1])


def buffers_and_frozen_parameters() -> None:
    buffers()
    frozen_parameters()


def test_buffers_and_frozen_parameters() -> None:
    run(buffers_and_frozen_parameters, 2)


def accumulate_alone(
    model: nn.Module,
    steps: list[dict[str, Tensor]],
    loss_fn: Callable[..., Tensor],
    call: Callable[..., Tensor],
) -> None:
    for batch in steps:
        for index in range(4):
            part = {name: item.chunk(4)[index] for name, item in batch.items()}
            (loss_fn(call(model, part), part) / 4).backward()


def assert_equal(pipe: nn.Module, alone: nn.Module, within: float) -> None:
    expected = dict(alone.named_parameters())
    for name, parameter in pipe.named_parameters():
        assert (parameter - expected[name]).abs().max() <= within, name
        if parameter.grad is None or expected[name].grad is None:
            assert parameter.grad is expected[name].grad
        else:
            assert (parameter.grad - expected[name].grad).abs().max() <= within, name


def accumulated_and_clipped() -> None:
    import smdp.torch

    tied = lambda: Language(tied=True)  # noqa: E731
    call = lambda model, part: model(**part)  # noqa: E731
    for make, steps, loss_fn, used, within in (
        (Chain, rows(4), square_loss, only_x, 0.0),
        (tied, batches(4, 8), language_loss, call, 1e-6),
    ):
        for schedule in BOTH:
            alone = made(make)
            pipe = smdp.torch.pipeline(
                made(make), dist.get_world_size(), 4, schedule, example_inputs=steps[0]
            )
            optimizers = [torch.optim.SGD(module.parameters(), lr=0.01) for module in (alone, pipe)]
            for pair in (steps[:2], steps[2:]):
                for optimizer in optimizers:
                    optimizer.zero_grad()
                accumulate_alone(alone, pair, loss_fn, used)
                for batch in pair:
                    pipe.train_step(batch, loss_fn)
                assert_equal(pipe, alone, within)
                for kind, norm_type in ((0.5, 2.0), (0.1, float("inf")), (0.05, 1.0)):
                    expected = nn.utils.clip_grad_norm_(alone.parameters(), kind, norm_type)
                    found = smdp.torch.clip_grad_norm_(pipe.parameters(), kind, norm_type)
                    assert abs(found - expected) <= 10 * within * abs(expected), (found, expected)
                    assert_equal(pipe, alone, within)
                for optimizer in optimizers:
                    optimizer.step()
                assert_equal(pipe, alone, within)


def clips_where_a_rank_trains_nothing() -> None:
    import smdp.torch

    make = frozen(lambda name: name.startswith(("layers.0", "layers.1", "layers.2", "layers.3")))
    alone = made(make)
    pipe = smdp.torch.pipeline(
        made(make), 2, 4, example_inputs=rows()[0], pins={"layers.3": 0, "layers.4": 1}
    )
    accumulate_alone(alone, rows(1), square_loss, only_x)
    pipe.train_step(rows(1)[0], square_loss)
    expected = nn.utils.clip_grad_norm_(alone.parameters(), 0.1)
    trained = [parameter for parameter in pipe.parameters() if parameter.requires_grad]
    assert bool(trained) == (dist.get_rank() == 1)
    assert smdp.torch.clip_grad_norm_(trained, 0.1, foreach=False) == expected
    assert_equal(pipe, alone, 0)


def accumulates_and_clips() -> None:
    # First: with no parameters on a rank, only one pipeline may be there.
    clips_where_a_rank_trains_nothing()
    accumulated_and_clipped()


def test_gradients_accumulate_and_are_clipped_as_in_one_process() -> None:
    run(accumulates_and_clips, 2)
