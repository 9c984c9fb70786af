"""Values that the host reads: of several stages at once, summed up in numbers and in tensors."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from pipeline_models import Chain, adam, differences, made, rows, square_loss, train_alone
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch_spawn import run

import smdp.torch

SCHEDULES = (
    "gpipe 1f1b smp_interleaved zb_1p zb_2p looped_bfs interleaved_1f1b interleaved_zero_bubble zb_v v_half"
    " v_min dualpipe_v"
)


class Early(Chain):
    """Gives something of its first stage, too."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = self.layers[0](x)
        hidden = first
        for layer in self.layers[1:]:
            hidden = layer(hidden)
        return self.head(hidden), first


class Meter:
    """Metrics as users keep them."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.words = ""
        self.total = torch.zeros(())
        self.counts = torch.zeros(2, 2, dtype=torch.int64)
        self.best = torch.full((1,), -1e9)

    def __call__(self, output: tuple[Tensor, Tensor], part: dict[str, Tensor]) -> Tensor:
        last, first = output
        loss = (last - part["y"]).square().mean()
        self.loss += loss.item()
        self.words += f"{first.sum().item():.3f} {last.sum().item():.3f};"
        self.loss += first.abs().mean().item()
        self.total += loss.detach()
        self.total.add_(first.detach().mean())
        guess = (last > 0).long().flatten()
        self.counts.index_put_(((part["y"] > 0).long().flatten(), guess), torch.tensor(1), accumulate=True)
        self.counts[0, 0] += guess.sum()
        torch.maximum(self.best, last.detach().max(), out=self.best)
        torch._foreach_add_([self.total, self.best], [last.detach().sum(), first.detach().sum()])
        assert torch.vmap(torch.square)(part["y"]).shape == part["y"].shape
        # Of this microbatch alone, and with a gradient: it stays where the loss is.
        extra = torch.zeros(())
        extra += loss * 0.5
        return loss + extra

    def numbers(self) -> list[Any]:
        return [self.loss, self.words, self.total.item(), self.counts.tolist(), self.best.item()]


def metrics_of_two_stages() -> None:
    steps = rows(2)
    alone = made(Early)
    expected = Meter()
    call = lambda model, part: model(part["x"])  # noqa: E731
    train_alone(alone, steps, 4, expected, call)
    fresh = made(Early)
    evaluated = Meter()
    for part in steps[0]["x"].chunk(4), steps[0]["y"].chunk(4):
        assert len(part) == 4
    with torch.no_grad():
        for x, y in zip(steps[0]["x"].chunk(4), steps[0]["y"].chunk(4), strict=True):
            evaluated(fresh(x), {"y": y})
    for schedule in SCHEDULES.split():
        # The first microbatch of a kind is recorded; the others, and later steps, follow the plan.
        pipe = smdp.torch.pipeline(made(Early), microbatches=4, schedule=schedule, example_inputs=rows()[0])
        for _ in range(2):
            seen = Meter()
            pipe.eval_step(steps[0], seen)
            assert seen.numbers() == evaluated.numbers(), schedule
        optimizer = adam(pipe)
        meter = Meter()
        for batch in steps:
            optimizer.zero_grad()
            pipe.train_step(batch, meter)
            optimizer.step()
        assert meter.numbers() == expected.numbers(), schedule
        assert differences(pipe, alone) == {}, schedule


@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.slow), 4])
def test_metrics_of_two_stages_under_every_schedule(ranks: int) -> None:
    run(metrics_of_two_stages if ranks == 2 else metrics_on_four_ranks, ranks)


class Growing(Chain):
    """Reads two values in its forward, at the end of a layer and at its begin."""

    def __init__(self) -> None:
        super().__init__()
        self.growth: list[float] = []

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            before = x.norm()
            x = layer(x)
            self.growth.append(x.norm().item() / before.item())
        return self.head(x)  # type: ignore[no-any-return]


def reads_in_the_model() -> None:
    steps = rows(1, 16)
    alone = made(Growing)
    train_alone(alone, steps, 8, square_loss, lambda model, part: model(part["x"]))
    ranks = dist.get_world_size()
    for schedule in ("1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zb_v", "v_half", "v_min"):
        pipe = smdp.torch.pipeline(
            made(Growing), stages=ranks, microbatches=8, schedule=schedule, example_inputs=steps[0]
        )
        pipe.train_step(steps[0], square_loss)
        pipe.eval_step(steps[0], square_loss)
        optimizer = adam(pipe)
        optimizer.zero_grad()
        pipe.module.growth.clear()
        pipe.train_step(steps[0], square_loss)
        optimizer.step()
        assert differences(pipe, alone) == {}, schedule


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_values_read_inside_the_model(ranks: int) -> None:
    run(reads_in_the_model, ranks)


def metrics_on_four_ranks() -> None:
    steps = rows(2)
    alone = made(Early)
    expected = Meter()
    train_alone(alone, steps, 8, expected, lambda model, part: model(part["x"]))
    for schedule in ("1f1b", "zb_v", "interleaved_1f1b"):
        pipe = smdp.torch.pipeline(
            made(Early), stages=4, microbatches=8, schedule=schedule, example_inputs=rows()[0]
        )
        optimizer = adam(pipe)
        meter = Meter()
        for batch in steps:
            pipe.eval_step(batch, Meter())
            optimizer.zero_grad()
            pipe.train_step(batch, meter)
            optimizer.step()
        assert meter.numbers() == expected.numbers(), schedule
        assert differences(pipe, alone) == {}, schedule


_SPAN = 0.02


class Sleep(torch.autograd.Function):
    """Computes nothing, so that a busy machine does not count."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        time.sleep(_SPAN)
        return hidden.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        time.sleep(_SPAN)
        return gradients[0]


class Sleeping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, hidden: Tensor) -> Tensor:
        # Placeholders do not sleep.
        asleep: Tensor = hidden if isinstance(hidden, FakeTensor) else Sleep.apply(hidden)
        return asleep * self.scale


def throughput_with_reads() -> None:
    def plain(output: Tensor) -> Tensor:
        return output.square().mean()

    def reading(output: Tensor) -> Tensor:
        loss = output.square().mean()
        if loss.item() > 1e9:
            raise AssertionError
        return loss

    x = rows(1, 8)[0]["x"]
    for schedule in os.environ["SCHEDULES"].split():
        model = made(lambda: nn.Sequential(*(Sleeping() for _ in range(8))))
        pipe = smdp.torch.pipeline(model, microbatches=8, schedule=schedule)
        spans: dict[Any, list[float]] = {plain: [], reading: []}
        ratio = torch.zeros(())
        # The first of each is recorded. Other work on the machine makes steps longer, never shorter.
        for count in range(15):
            for loss_fn, found in spans.items():
                dist.barrier()
                begin = time.perf_counter()
                pipe.train_step(x, loss_fn)
                dist.barrier()
                found.append(time.perf_counter() - begin)
            if count >= 2:
                ratio.fill_(min(spans[plain][1:]) / min(spans[reading][1:]))
                dist.broadcast(ratio, 0)
                if ratio > 0.9:
                    break
        assert ratio > 0.9, (schedule, ratio, spans)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("schedules", ["1f1b", pytest.param(SCHEDULES, marks=pytest.mark.slow)])
def test_host_reads_leave_the_throughput(schedules: str) -> None:
    run(throughput_with_reads, 2, env={"SCHEDULES": schedules}, timeout=280)


def what_cannot_be_kept() -> None:
    kept: list[Tensor] = []
    total = torch.zeros(())

    def keeps(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        loss = (output - part["y"]).square().mean()
        kept.append(loss.detach())
        return loss

    def adds(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        loss = (output - part["y"]).square().mean()
        nonlocal total
        total += loss
        return loss

    late: dict[str, Tensor] = {}

    def makes_late(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        loss = (output - part["y"]).square().mean()
        late.setdefault("total", torch.zeros(())).add_(loss.detach())
        return loss

    pipe = smdp.torch.pipeline(made(Chain), microbatches=4, example_inputs=rows()[0])
    both = (ValueError, smdp.SmdpError)  # the other rank may be the first to find it
    with pytest.raises(both, match=r"float32\[\] was created in the program of another microbatch"):
        pipe.train_step(rows()[0], makes_late)
    pipe = smdp.torch.pipeline(made(Chain), microbatches=4, example_inputs=rows()[0])
    pipe.train_step(rows()[0], keeps)
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError, match=r"\[smdp\] this tensor is a placeholder"):
            kept[0].item()
    else:
        assert isinstance(kept[0].item(), float)
    with pytest.raises(
        both, match=r"add_ writes a value of .* with a gradient into float32\[\], .* Call detach\(\)"
    ):
        pipe.train_step(rows()[0], adds)


def test_what_cannot_be_kept_is_refused_by_name() -> None:
    run(what_cannot_be_kept, 2)
