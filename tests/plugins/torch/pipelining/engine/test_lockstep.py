"""Ranks that hold the same stage run units and host code in one order, whenever host reads are answered."""

from __future__ import annotations

import os
import time

import pytest
import torch
import torch.distributed as dist
from pipeline_models import WIDTH, Chain, Layer, adam, differences, made, only_x, rows, train_alone
from torch import Tensor, nn
from torch_spawn import run

import smdp.torch
from smdp.torch.pipelining.engine.lockstep import Lockstep

_DELAY = 0.05

group: dist.ProcessGroup | None = None
order: list[str] = []


# A collective as tensor parallelism has it in units: an operator with a fake kernel, which tells the shape.
@torch.library.custom_op("smdp_test::mean_over_twins", mutates_args=())
def mean_over_twins(x: Tensor) -> Tensor:
    order.append("unit")
    result = x.clone()
    dist.all_reduce(result, group=group)
    return result / 2


@mean_over_twins.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


mean_over_twins.register_autograd(lambda ctx, gradient: gradient)


class Sliced(nn.Module):
    """A layer whose ranks add up what each of them has computed."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = Layer()

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x)
        result: Tensor = mean_over_twins(hidden) if group is not None else hidden
        return result


def sliced() -> nn.Module:
    return nn.Sequential(*(Sliced() for _ in range(4)), nn.Linear(WIDTH, 1))


def units_and_host_code_in_one_order() -> None:
    global group
    batch = rows(1, 8)[0]
    alone = made(sliced)
    train_alone(alone, [batch] * 3, 8, _loss, lambda model, part: model(part["x"]))
    pipe = smdp.torch.pipeline(made(sliced), 2, 8, schedule="gpipe")
    pipe._steps.handlers.add(Lockstep())
    twins = [dist.new_group(list(ranks)) for ranks in pipe.layout.placement.groups("rdp")]
    group = next(twin for twin in twins if dist.get_rank(twin) >= 0)
    is_late = pipe.layout.replica == 1 and pipe.layout.stage_rank == 1

    def logs(output: Tensor, part: dict[str, Tensor]) -> Tensor:
        loss = _loss(output, part)
        if is_late:
            time.sleep(_DELAY)
        total = torch.tensor(loss.item())
        order.append("host")
        dist.all_reduce(total, group=group)
        return loss

    optimizer = adam(pipe)
    for _ in range(3):
        optimizer.zero_grad()
        pipe.train_step({"input": batch["x"], "y": batch["y"]}, logs)
        optimizer.step()
    assert differences(pipe, alone) == {}
    orders: list[list[str] | None] = [None, None]
    dist.all_gather_object(orders, order, group=group)
    assert orders[0] == orders[1]
    assert order.count("host") == 3 * 8


def _loss(output: Tensor, part: dict[str, Tensor]) -> Tensor:
    return (output - part["y"]).square().mean()


def test_ranks_of_one_stage_run_units_and_host_code_in_one_order() -> None:
    run(units_and_host_code_in_one_order, 4)


class Reading(Chain):
    """Reads values of every stage within its forward, and gives something of the first."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        first = x = self.layers[0](x)
        scale = 1.0
        for layer in self.layers[1:]:
            scale += first.sum().item() + x.norm().item()
            x = layer(x)
        return self.head(x) * scale, first


def reads_everywhere() -> None:
    def loss_fn(output: tuple[Tensor, Tensor], part: dict[str, Tensor]) -> Tensor:
        last, first = output
        loss = (last - part["y"]).square().mean()
        seen.append(loss.item() + first[0, 0].item() + last.sum().item())
        return loss

    steps = rows(2, 8)
    seen: list[float] = []
    alone = made(Reading)
    train_alone(alone, steps, 8, loss_fn, only_x)
    expected = list(seen)
    for schedule in os.environ["SCHEDULES"].split():
        pipe = smdp.torch.pipeline(
            made(Reading),
            dist.get_world_size(),
            8,
            schedule=schedule,
            example_inputs=steps[0],
        )
        pipe._steps.handlers.add(Lockstep())
        optimizer = adam(pipe)
        seen.clear()
        for batch in steps:
            optimizer.zero_grad()
            pipe.train_step(batch, loss_fn)
            optimizer.step()
        assert seen == expected, schedule
        for batch in steps:
            pipe.eval_step(batch, loss_fn)
        assert differences(pipe, alone) == {}, schedule


@pytest.mark.parametrize(
    ("ranks", "schedules"),
    [
        (3, "gpipe 1f1b interleaved_1f1b"),
        (2, "zb_v"),
        pytest.param(2, "gpipe smp_interleaved zb_1p looped_bfs zb_2p", marks=pytest.mark.slow),
        pytest.param(2, "interleaved_zero_bubble v_half v_min dualpipe_v", marks=pytest.mark.slow),
    ],
)
def test_no_rank_waits_in_a_circle(ranks: int, schedules: str) -> None:
    run(reads_everywhere, ranks, env={"SCHEDULES": schedules})
